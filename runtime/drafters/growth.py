"""A draft tree while it grows, and which of its nodes are worth a row of the pass.

The chance that the target gets to a node is the product of the chances along its path. The sum of these over a tree is the
number of tokens that it is expected to give, so the best tree of n nodes has the n likeliest (Wang et al. 2024, OPT-Tree; Chen
et al. 2024, Sequoia, for chances by rank). A parent is never less likely than its child, so these hang together.

Where only the first path may commit, a node beside it gives no token in its round but a token drafted almost for sure in the next:
it counts for a share.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from edgespec.distribution import Distribution
from edgespec.tree import DraftTree

SEED_WORTH = 0.5  # of a node that cannot commit


class Growth:
    """Nodes in the order in which they were added; children of one node in the order in which they are tried.

    Attributes:
        tokens, parents, q: as in the tree.
        chances: of getting to each node.
        values: what each adds to the expected number of tokens.
    """

    def __init__(self, branches: bool) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.q: list[Distribution | None] = []
        self.chances: list[float] = []
        self.values: list[float] = []
        self._worth = 1.0 if branches else SEED_WORTH
        self._first = [-1]
        """The first path, from the root."""

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, parent: int, token: int, chance: float, q: Distribution | None = None) -> int:
        """A node that the target gets to with ``chance`` once it is at ``parent``, -1 for the root. Returns its number."""
        node = len(self.tokens)
        value = self.value_of(parent, chance)
        if parent == self._first[-1]:
            self._first.append(node)
        self.tokens.append(token)
        self.parents.append(parent)
        self.q.append(q)
        self.chances.append(self._reached(parent) * min(chance, 1.0))
        self.values.append(value)
        return node

    def value_of(self, parent: int, chance: float) -> float:
        """What the next child of ``parent`` adds to the expected number of tokens if it has this chance."""
        return self._reached(parent) * min(chance, 1.0) * (1.0 if parent == self._first[-1] else self._worth)

    def side_value_of(self, parent: int, chance: float) -> float:
        """The same for a child after the first."""
        return self._reached(parent) * min(chance, 1.0) * self._worth

    @property
    def first_path(self) -> list[int]:
        """Its nodes, in order."""
        return self._first[1:]

    def chance(self, node: int) -> float:
        """Of ``node`` once the target is at its parent."""
        return self.chances[node] / self._reached(self.parents[node])

    def _reached(self, node: int) -> float:
        return self.chances[node] if node >= 0 else 1.0

    def path(self, node: int) -> list[int]:
        """Tokens from the root to ``node``."""
        tokens = []
        while node >= 0:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tokens[::-1]

    def best(self, count: int) -> list[int]:
        """The ``count`` nodes of most value, that first."""
        return heapq.nsmallest(count, range(len(self)), key=lambda node: (-self.values[node], node))

    def tree(self, nodes: Sequence[int]) -> DraftTree:
        """The tree of these nodes, which hold the parents of each, its first path first."""
        chosen = set(nodes)
        first = []
        for node in self._first[1:]:
            if node not in chosen:
                break
            first.append(node)
        order = [*first, *sorted(chosen.difference(first))]
        place = {node: index for index, node in enumerate(order)} | {-1: -1}
        q = tuple(self.q[node] for node in order)
        return DraftTree(
            tuple(self.tokens[node] for node in order),
            tuple(place[self.parents[node]] for node in order),
            q if any(found is not None for found in q) else (),
        )


def most_per_millisecond(values: Sequence[float], pass_ms: Callable[[int], float], spent_ms: float) -> tuple[int, float]:
    """How many nodes to verify, and the tokens per millisecond that are expected of that.

    Args:
        values: of the nodes, the largest first.
        pass_ms: cost of a target pass of so many tokens.
        spent_ms: what drafting took.
    """
    best, rate, tokens = 0, 1.0 / (pass_ms(1) + spent_ms), 1.0
    for count, value in enumerate(values, start=1):
        tokens += value
        found = tokens / (pass_ms(1 + count) + spent_ms)
        if found > rate:
            best, rate = count, found
    return best, rate
