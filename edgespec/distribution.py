"""A distribution over the few tokens that may come next: p of the target, q of a draft (Leviathan et al. 2023).

Most of a vocabulary has no chance after top-k or top-p, so only what was kept is stored: ids in ascending order and their
probabilities.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

LARGE = 8192  # from here on a draw first chooses a block of tokens and then a token in it


@dataclasses.dataclass(frozen=True, eq=False)
class Distribution:
    """Probabilities ``weights`` [k], which sum to one, of the ids ``tokens`` [k], ascending. All other ids have none."""

    tokens: npt.NDArray[np.int64]
    weights: npt.NDArray[np.floating]

    @classmethod
    def of_weights(cls, tokens: npt.NDArray[np.int64], weights: npt.NDArray[np.floating]) -> Distribution:
        """Weights that do not sum to one yet."""
        return cls(tokens, weights / weights.sum())

    @classmethod
    def mean(cls, parts: Sequence[Distribution]) -> Distribution:
        """The mixture of several distributions in equal parts."""
        if len(parts) == 1:
            return parts[0]
        tokens, place = np.unique(np.concatenate([part.tokens for part in parts]), return_inverse=True)
        weights = np.zeros(len(tokens))
        np.add.at(weights, place.ravel(), np.concatenate([part.weights for part in parts]))
        return cls.of_weights(tokens, weights)

    def draw(self, uniform: float) -> int:
        """The token at the share ``uniform``, in [0, 1), of the probabilities laid side by side."""
        if len(self.tokens) < LARGE:
            return int(self.tokens[_at(self.weights, uniform)[0]])
        size = int(len(self.tokens) ** 0.5)
        sums = np.add.reduceat(self.weights, np.arange(0, len(self.weights), size))
        block, left = _at(sums, uniform)
        start = block * size
        inside = self.weights[start : start + size]
        return int(self.tokens[start + _at(inside, min(left / float(sums[block]), 1.0))[0]])

    def probability(self, token: int) -> float:
        """Probability of one token, 0 if it was not kept."""
        place = int(np.searchsorted(self.tokens, token))
        return float(self.weights[place]) if place < len(self.tokens) and self.tokens[place] == token else 0.0

    def minus(self, other: Distribution) -> Distribution | None:
        """norm(max(0, p - q)), from which a token is drawn after one of q was refused; None where nothing is left."""
        if self.tokens is other.tokens or np.array_equal(self.tokens, other.tokens):
            rest = self.weights - other.weights
        else:
            place = np.minimum(np.searchsorted(other.tokens, self.tokens), len(other.tokens) - 1)
            rest = self.weights - np.where(other.tokens[place] == self.tokens, other.weights[place], 0.0)
        return self._kept(rest)

    def without(self, token: int) -> Distribution | None:
        """The distribution once ``token`` is ruled out; None where nothing is left."""
        return self._kept(np.where(self.tokens == token, 0.0, self.weights))

    def _kept(self, weights: npt.NDArray[np.floating]) -> Distribution | None:
        left = np.flatnonzero(weights > 0)
        return Distribution.of_weights(self.tokens[left], weights[left]) if len(left) else None


def _at(weights: npt.NDArray[np.floating], uniform: float) -> tuple[int, float]:
    """Index of the weight at the share ``uniform`` of their sum, and how much of the sum lies before that point inside it."""
    cumulative = np.cumsum(weights, dtype=np.float64)
    point = uniform * float(cumulative[-1])
    index = min(int(np.searchsorted(cumulative, point, side="right")), len(weights) - 1)
    return index, point - (float(cumulative[index - 1]) if index else 0.0)
