"""Drafts for any target without data (``edgespec distill``): the target writes a corpus, and a small draft learns to foretell it.

In order: **target.py** opens the exported, quantised target; **continuous_batching.py** writes many texts at once with it, by
**batch_graph.py** and **batch_model.py**; **questions.py** and **corpus.py** say which, **shards.py** keeps them with hidden states and
labels; **vocabulary.py** chooses the draft's tokens, **batches.py** cuts the texts, **students/** are the drafts and their layouts,
**train.py** trains them, in the numbers that **precision.py** chooses, and **acceptance.py** judges them by tokens per pass; **card.py**
says what was done and **evaluate.py** measures it end to end. **pipeline.py** is the whole.
"""

from __future__ import annotations

from edgespec.export.distill.config import DistillConfig
from edgespec.export.distill.pipeline import DistillReport, distill

__all__ = ["DistillConfig", "DistillReport", "distill"]
