"""A draft model with another vocabulary than the target's (Timor et al. 2025, "Accelerating LLM Inference with Lossless Speculative
Decoding Algorithms for Heterogeneous Vocabularies").

The draft reads the text in its own tokens (:mod:`edgespec.runtime.text.translate`). What it proposes becomes tokens of the target in one
of two ways:

* where tokens are chosen, by the text: the draft writes freely in its own tokens, and its text is encoded with the target's
  tokenizer (string-level exact match, their algorithm 2; the universal assisted decoding of transformers);
* where tokens are drawn, by the ids: q is the draft's distribution over the tokens that both have, so that the rule for
  lossless sampling needs no change (token-level intersection, their algorithm 4).

Where the tokenizer is the same and only some ids differ, such as special tokens at the end of the vocabulary, it is always the second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgespec.runtime.drafters import Resources
from edgespec.runtime.drafters.draft_model import DraftModel, most_likely
from edgespec.runtime.models.model import Model
from edgespec.runtime.sampling.processors import Floats, Text
from edgespec.runtime.sampling.sampling import Candidate
from edgespec.runtime.text.translate import Translator
from edgespec.runtime.tuning.controller import Gate
from edgespec.tree import DraftTree


class SharedTokensDraft(DraftModel):
    """Proposes tokens that both vocabularies have."""

    name = "universal"

    def __init__(
        self, model: Model, translator: Translator, choose: Callable[[Floats, Text], Candidate] = most_likely, gate: Gate | None = None
    ) -> None:
        super().__init__(model, model.spec.vocab_size, choose, gate)
        self._translator = translator

    def read(self, context: Sequence[int]) -> Sequence[int] | None:
        self._agreed = None  # The text's end may be cut otherwise than it was a round ago: compare from the start.
        return self._translator.follow(context)

    def row(self, logits: Floats) -> Floats:
        return self._translator.shared.widen(logits[0])

    def own_id(self, token: int) -> int:
        return self._translator.shared.of_target.get(token, -1)


class TextDraft(SharedTokensDraft):
    """Proposes the text that the draft writes."""

    def propose(self, context: Sequence[int], max_tokens: int) -> DraftTree:
        ids, count = self.read(context), min(max_tokens, self._model.capacity // 2)
        logits = None if not ids else self.catch_up(ids, count)
        if not ids or logits is None:
            return DraftTree()
        drafted: list[int] = []
        while True:
            drafted.append(int(logits[0].argmax()))
            if len(drafted) == count:
                break
            logits = self._model.run([drafted[-1]], [0])
        return DraftTree.chain(self._translator.back(ids, drafted)[:max_tokens])


def make_universal(resources: Resources) -> DraftModel:
    """The one of the two that fits how tokens are accepted."""
    (model, *_), translator = resources.models("universal"), resources.translator("universal")
    if model.spec.tokenizer is not None and not resources.draws:
        return TextDraft(model, translator)
    return SharedTokensDraft(model, translator, resources.choose, resources.gate)
