"""Text through the exported model, run as users run it: whole, gone on with, and in passes of which a part is rejected."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from edgespec.runtime.models.model import Model

WRITTEN_TOKENS = 48  # how far a text is gone on with


def prefill(model: Model, ids: list[int]) -> np.ndarray:
    """Logits ``[n, V]`` of a whole text."""
    model.keep(0)
    return np.concatenate([model.run(ids[part], range(len(ids[part]))).copy() for part in _chunks(model, len(ids))])


def go_on(model: Model, text: list[int], seed: int) -> list[int]:
    """The first half of a text, as far as there is room, and what the model writes after it, sampled at temperature 1."""
    rng = np.random.default_rng(seed)
    ids = text[: max(2, min(len(text) // 2, model.capacity - WRITTEN_TOKENS - 1))]
    logits = prefill(model, ids)[-1]
    for _ in range(min(WRITTEN_TOKENS, model.capacity - len(ids) - 1)):
        weights = np.exp(logits.astype(np.float64) - logits.max())
        ids = [*ids, int(rng.choice(len(weights), p=weights / weights.sum()))]
        logits = model.run(ids[-1:], [0])[0]
    return ids


@dataclasses.dataclass(frozen=True)
class Rollback:
    """Passes over a sequence: prefill, then a verification pass whose tokens are right up to ``kept``, then the rest.

    ``other`` is the sequence with wrong tokens from ``kept`` on.
    """

    ids: list[int]
    other: list[int]
    prefill: int
    kept: int
    drafted: int

    @classmethod
    def of(cls, ids: list[int], vocab_size: int) -> Rollback:
        prefilled = max(1, len(ids) * 2 // 3)
        kept, drafted = min(prefilled + 3, len(ids)), min(prefilled + 6, len(ids))
        other = ids[:kept] + [(token + 1) % vocab_size for token in ids[kept:]]
        return cls(ids, other, prefilled, kept, drafted)

    def run(self, model: Model) -> np.ndarray:
        """Logits ``[rows, V]`` of every row of every pass of the exported model."""
        ids, kept = self.ids, self.kept
        passes = ((ids[: self.prefill], self.prefill), (self.other[self.prefill : self.drafted], kept), (ids[kept : kept + 1], kept + 1))
        model.keep(0)
        rows = []
        for tokens, keep in (*passes, (ids[kept + 1 :], len(ids))):
            if tokens:
                rows.append(model.run(tokens, range(len(tokens))).copy())
                model.keep(min(keep, model.length))
        return np.concatenate(rows)

    def wanted(self, right: np.ndarray, wrong: np.ndarray) -> np.ndarray:
        """What :meth:`run` should give, from the original's logits ``[n, V]`` of both sequences."""
        return np.concatenate([right[: self.prefill], wrong[self.prefill : self.drafted], right[self.kept :]])


def _chunks(model: Model, count: int) -> Iterator[slice]:
    for start in range(0, count, model.max_pass):
        yield slice(start, min(start + model.max_pass, count))
