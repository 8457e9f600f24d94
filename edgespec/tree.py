"""The draft tree: the one type for what a drafter proposes, a chain being a tree of one branch.

    root = the last accepted token, already known; not a node
    nodes 0..n-1 in topological order: parents[i] < i, and -1 for a child of the root

A worked example, used by the tests too: tokens (5, 6, 7), parents (-1, 0, -1) proposes "5 6" and, instead of 5, "7".
Its depths are (1, 2, 1), and node 2 sees neither node 0 nor node 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgespec.distribution import Distribution


@dataclasses.dataclass(frozen=True)
class DraftTree:
    """Proposed tokens and the index of each one's parent, -1 for the root.

    ``q`` says for each node what distribution its token was drawn from, given the siblings before it: drawn with
    replacement these are all the same, drawn without it each is the one before less the token that was drawn. None stands
    for a token that was not drawn but chosen, and an empty tuple for nodes that all were.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    q: tuple[Distribution | None, ...] = dataclasses.field(default=(), compare=False)

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.parents):
            raise ValueError(f"{len(self.tokens)} tokens but {len(self.parents)} parents")
        if self.q and len(self.q) != len(self.tokens):
            raise ValueError(f"{len(self.tokens)} tokens but {len(self.q)} distributions")
        for node, parent in enumerate(self.parents):
            if not -1 <= parent < node:
                raise ValueError(f"node {node} has parent {parent}: parents come before their children")

    @classmethod
    def chain(cls, tokens: Sequence[int], q: Sequence[Distribution | None] = ()) -> DraftTree:
        """A tree of one branch."""
        return cls(tuple(tokens), tuple(range(-1, len(tokens) - 1)), tuple(q))

    @classmethod
    def of_paths(cls, paths: Iterable[Sequence[int]], most: int) -> DraftTree:
        """The tree of these paths from the root, which share the nodes that they begin with; the first path comes first. What is
        beyond ``most`` nodes is left out."""
        tokens: list[int] = []
        parents: list[int] = []
        known: dict[tuple[int, int], int] = {}
        for path in paths:
            node = -1
            for token in path:
                if (node, token) not in known:
                    if len(tokens) == most:
                        break
                    known[node, token] = len(tokens)
                    tokens.append(token)
                    parents.append(node)
                node = known[node, token]
        return cls(tuple(tokens), tuple(parents))

    def find(self, path: Iterable[int]) -> int | None:
        """The node at the end of this path of tokens from the root, -1 for the empty path; None if there is none."""
        node = -1
        for token in path:
            node = next((child for child in self.children(node) if self.tokens[child] == token), -1)
            if node < 0:
                return None
        return node

    def q_of(self, node: int) -> Distribution | None:
        """What ``node`` was drawn from, None if it was chosen."""
        return self.q[node] if self.q else None

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    def depths(self) -> list[int]:
        """Distance of each node from the root: 1 for its children."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return depths

    def ancestors(self, node: int) -> list[int]:
        """The nodes on the path from the root to ``node``, ``node`` included, in order."""
        path = []
        while node >= 0:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def children(self, node: int) -> list[int]:
        """Children of ``node``, of the root for -1, in order."""
        return [child for child, parent in enumerate(self.parents) if parent == node]
