"""A smaller model of the same vocabulary drafts a chain, greedily (Leviathan et al. 2023; Chen et al. 2023).

It has its own KV cache. What the target accepted is still in it, so a proposal first rolls back to the common prefix, catches
up on what is new in one pass, and then steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.runtime.model import PREFILL_WIDTH, Model
from edgespec.tree import DraftTree


class DraftModel:
    """Drafts with ``model``; proposes only ids below ``vocabulary``, whatever the draft's own is padded to."""

    name = "draft"

    def __init__(self, model: Model, vocabulary: int) -> None:
        self._model = model
        self._vocabulary = min(vocabulary, model.spec.vocab_size)
        self._passes_before, self._seconds_before = model.passes, model.run_seconds
        self._proposed: list[int] = []
        self._known = 0
        """The cache's first rows hold the context's first ``_known`` tokens, and after them those of ``_proposed``."""
        model.keep(0)

    @property
    def passes(self) -> int:
        return self._model.passes - self._passes_before

    @property
    def run_seconds(self) -> float:
        return self._model.run_seconds - self._seconds_before

    def propose(self, context: Sequence[int], max_tokens: int) -> DraftTree:
        self._roll_back(context)
        count = min(max_tokens, self._model.capacity - len(context))
        if count < 1 or max(context[self._known :], default=0) >= self._vocabulary:
            return DraftTree()
        new = list(context[self._known :])
        for start in range(0, len(new), PREFILL_WIDTH):
            chunk = new[start : start + PREFILL_WIDTH]
            logits = self._model.run(chunk, [len(chunk) - 1])
        self._known = len(context)
        tokens = [int(logits[0, : self._vocabulary].argmax())]
        while len(tokens) < count:
            logits = self._model.run(tokens[-1:], [0])
            tokens.append(int(logits[0, : self._vocabulary].argmax()))
        self._proposed = tokens[:-1]  # The last one has no cache row yet.
        return DraftTree.chain(tokens)

    def observe(self, context: Sequence[int], accepted: int) -> None:
        pass

    def _roll_back(self, context: Sequence[int]) -> None:
        """Keep the rows that agree with the context. One of its tokens at least is left to run, for its logits."""
        for token in self._proposed:
            if self._known >= len(context) - 1 or context[self._known] != token:
                break
            self._known += 1
        self._proposed = []
        self._model.keep(self._known)
