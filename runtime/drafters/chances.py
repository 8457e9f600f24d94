"""How likely the target is to take a drafted token: by its rank among its siblings, and by how likely the draft thinks it.

Small models are surer of themselves than they should be, so the draft's probability is no chance yet. What came true of tokens of
about that probability is (a calibration by histogram, with straight lines between its bins).
"""

from __future__ import annotations

import bisect
import copy
import itertools
import math
from collections.abc import Sequence

from edgespec.runtime.tuning.acceptance import HOPE
from edgespec.tree import DraftTree

FIRST = (0.65, 0.2, 0.1, 0.05)  # share of texts that go on with the draft's first, second, ... candidate; a start, soon outvoted
EDGES = (0.003, 0.01, 0.03, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95)  # of the bins
WEIGHT = 4.0  # of the start, in observations
MEMORY = 0.98  # weight of the past after a round
IDLE = 0.99  # the same after a round without a tree
# Weight of the text before. How far the draft's own probabilities can be trusted is much the same in all. How often it is right is not:
# that is where the next text starts from, and as soon outvoted.
TRUST, LIKE_BEFORE = 0.5, 2 / 3


class Chances:
    """Learns from the texts that followed the trees. ``by_rank`` is the chance that a text which got to a node goes on with its first,
    second, ... child.

    Args:
        usual: how often the draft's first candidate was right when the bundle was exported, None where that was not tried.
    """

    def __init__(self, usual: float | None = None) -> None:
        self._usual = usual
        right = FIRST[0] if usual is None else min(FIRST[0], usual + HOPE)
        bounds = [EDGES[0] / 3, *EDGES, 1.0]
        self._centres = [math.sqrt(low * high) for low, high in itertools.pairwise(bounds)]
        self._ranks = Shares([right, *FIRST[1:]])
        self._bins = Shares(self._centres)
        self._learnt()

    def for_another_text(self) -> Chances:
        """Chances that begin with a part of what these have seen."""
        other = Chances(self._usual)
        pairs = zip(self._ranks.shares, other._ranks.shares, strict=True)
        other._ranks = Shares([LIKE_BEFORE * seen + (1 - LIKE_BEFORE) * usual for seen, usual in pairs])
        other._bins = copy.deepcopy(self._bins)
        other._bins.fade(TRUST)
        other._learnt()
        return other

    def of(self, probability: float) -> float:
        """Chance of a token that the draft gives ``probability``."""
        centres, shares = self._centres, self._calibrated
        above = bisect.bisect(centres, probability)
        if above == 0:
            return shares[0] * probability / centres[0]
        if above == len(centres):
            return shares[-1]
        low, high = centres[above - 1], centres[above]
        return shares[above - 1] + (shares[above] - shares[above - 1]) * (probability - low) / (high - low)

    def rest(self) -> None:
        """A round without a tree: what was learnt fades, so that another try is due some time."""
        self._ranks.fade(IDLE)
        self._bins.fade(IDLE)
        self._learnt()

    def observe(self, tree: DraftTree, probabilities: Sequence[float], text: Sequence[int]) -> None:
        """``text`` followed the root of ``tree``, whose nodes the draft gave ``probabilities``."""
        self._ranks.fade(MEMORY)
        self._bins.fade(MEMORY)
        node = -1
        for token in text:
            children = tree.children(node)
            node = next((child for child in children if tree.tokens[child] == token), -1)
            for rank, child in enumerate(children):
                if rank < len(FIRST):
                    self._ranks.count(rank, child == node)
                self._bins.count(bisect.bisect(EDGES, probabilities[child]), child == node)
            if node < 0:
                break
        self._learnt()

    def _learnt(self) -> None:
        self.by_rank = self._ranks.shares
        self._calibrated = rising(self._bins.shares, self._bins.weights)


def rising(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The nearest values, by weighted least squares, of which none is below the one before it (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        size = 1
        while pools and pools[-1][0] > value:
            other, heavy, more = pools.pop()
            value = (value * weight + other * heavy) / (weight + heavy)
            weight, size = weight + heavy, size + more
        pools.append((value, weight, size))
    return [value for value, _, size in pools for _ in range(size)]


class Shares:
    """Weighted counts of what came true; they begin at, and fade to, shares known beforehand."""

    def __init__(self, start: Sequence[float]) -> None:
        self._start = tuple(start)
        self._true = [0.0] * len(start)
        self._all = [0.0] * len(start)

    @property
    def shares(self) -> list[float]:
        numbers = zip(self._true, self._all, self._start, strict=True)
        return [(true + WEIGHT * start) / (seen + WEIGHT) for true, seen, start in numbers]

    @property
    def weights(self) -> list[float]:
        return [seen + WEIGHT for seen in self._all]

    def count(self, place: int, came_true: bool) -> None:
        self._true[place] += came_true
        self._all[place] += 1

    def fade(self, weight: float) -> None:
        self._true = [weight * number for number in self._true]
        self._all = [weight * number for number in self._all]
