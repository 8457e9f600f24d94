"""Medusa (Cai et al. 2024): heads over the target's last hidden state foretell several tokens at once.

Head d ranks tokens for the place d behind the last known token, whatever stands between. So one pass of the heads gives all of the
tree, whose shape is settled before by how often each head's token of each rank has been right: as measured at export, and as it
comes true in this text. Tokens are chosen and not drawn, which is lossless under both rules of acceptance (sampling.py).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from edgespec.runtime.drafters import Drafter, Resources, Round
from edgespec.runtime.drafters.chances import MEMORY, Shares
from edgespec.runtime.drafters.growth import Growth, most_per_millisecond
from edgespec.runtime.drafters.tree import TreeCosts
from edgespec.runtime.models.row_heads import RowHeads
from edgespec.runtime.sampling.processors import Floats
from edgespec.runtime.tuning.controller import LEAST_GAIN
from edgespec.tree import DraftTree

TRY_AGAIN = 64  # rounds without a tree until one is proposed whatever is known
UNKNOWN = 0.5  # share of a head's first token where the bundle says nothing; half of that of its second, and so on


class Medusa(Drafter):
    """Drafts with ``heads``.

    Args:
        heads: the heads.
        features: gives the target's hidden states, [rows of its cache, F].
        branches: whether every branch of a tree may commit.
        costs: of passes; without them the tree has as many nodes as it may have.
    """

    name = "medusa"

    def __init__(self, heads: RowHeads, features: Callable[[], Floats], branches: bool = True, costs: TreeCosts | None = None) -> None:
        self._heads = heads
        self._features = features
        self._branches = branches
        self._costs = costs
        unknown = tuple(UNKNOWN ** (rank + 1) for rank in range(heads.ranks))
        self._shares = [Shares(ranks) for ranks in heads.spec.accuracy or [unknown] * heads.heads]
        self._before = heads.passes, heads.run_seconds
        self._idle = 0
        self._asked: tuple[int, int, npt.NDArray[np.int64]] | None = None
        """Length of the context of the last proposal, the first head that it used, and the tokens [heads, ranks]."""

    @property
    def passes(self) -> int:
        return self._heads.passes - self._before[0]

    @property
    def run_seconds(self) -> float:
        return self._heads.run_seconds - self._before[1]

    @property
    def off(self) -> str | None:
        if not self._idle:
            return None
        first = self._shares[0].shares[0]
        return f"with {first:.0%} of the first head's likeliest tokens right, no tree gains {LEAST_GAIN - 1:.0%} over plain decoding"

    def propose(self, context: Sequence[int], max_tokens: int) -> DraftTree:
        features = self._features()
        # Usually all of the text but its last token is in the cache. After tokens that a grammar forced it is less, and the first
        # heads foretell what is known already.
        first = len(context) - 1 - len(features)
        if max_tokens < 1 or not len(features) or not 0 <= first < self._heads.heads:
            return DraftTree()
        plan = shape([shares.shares for shares in self._shares[first:]], max_tokens, self._branches)
        count = self._count(plan)
        if not count:
            self._idle += 1
            if self._idle < TRY_AGAIN:
                return DraftTree()
            count = min(len(plan), self._heads.heads - first)
        self._idle = 0
        tokens = self._heads.run(features[-1:])[0]
        self._asked = len(context), first, tokens
        growth = Growth(self._branches)
        depths: list[int] = []
        for node in range(count):
            parent = plan.parents[node]
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
            growth.add(parent, int(tokens[first + depths[node], plan.tokens[node]]), 1.0)
        return growth.tree(range(count))

    def _count(self, plan: Growth) -> int:
        """How many of the nodes of ``plan``, in order, pay; none where plain decoding is as fast."""
        if self._costs is None:
            return len(plan)
        count, rate = most_per_millisecond(plan.values, self._costs.pass_ms, self._costs.level_ms)
        return count if rate * self._costs.pass_ms(1) >= LEAST_GAIN else 0

    def observe(self, found: Round) -> None:
        asked, self._asked = self._asked, None
        if asked is None:
            return
        known, first, tokens = asked
        for depth, token in enumerate(found.context[known : known + self._heads.heads - first], first):
            shares = self._shares[depth]
            shares.fade(MEMORY)
            for rank in range(self._heads.ranks):
                shares.count(rank, token == tokens[depth, rank])


def shape(by_depth: Sequence[Sequence[float]], most: int, branches: bool) -> Growth:
    """The tree of most value whose nodes' chances depend on their depth and rank: at most ``most`` nodes, the one of most value
    first. Its tokens are ranks."""
    growth = Growth(branches)
    depths: list[int] = []
    heap = [(-by_depth[0][0], 0, -1, 0)]
    while heap and len(growth) < most:
        _, _, parent, rank = heapq.heappop(heap)
        depth = depths[parent] + 1 if parent >= 0 else 0
        node = growth.add(parent, rank, by_depth[depth][rank])
        depths.append(depth)
        if depth + 1 < len(by_depth):
            heapq.heappush(heap, (-growth.value_of(node, by_depth[depth + 1][0]), len(growth), node, 0))
        if rank + 1 < len(by_depth[depth]):
            heapq.heappush(heap, (-growth.value_of(parent, by_depth[depth][rank + 1]), len(growth), parent, rank + 1))
    return growth


def make_medusa(resources: Resources) -> Medusa:
    """With the bundle's Medusa heads."""
    costs = None if resources.pass_ms is None else TreeCosts(resources.pass_ms, resources.draft_ms("medusa"))
    return Medusa(resources.heads("medusa"), resources.features("medusa"), resources.branches, costs)
