"""Random draft trees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from edgespec.tree import DraftTree


@st.composite
def trees(draw: st.DrawFn, most: int = 12) -> DraftTree:
    """Any tree of at most ``most`` nodes."""
    size = draw(st.integers(0, most))
    tokens = tuple(draw(st.integers(0, 99)) for _ in range(size))
    return DraftTree(tokens, tuple(draw(st.integers(-1, node - 1)) for node in range(size)))


def tree_around(right: Sequence[int], size: int, rng: np.random.Generator) -> DraftTree:
    """A random tree of ``size`` nodes in which some path follows ``right`` for some way, and others nearly do."""
    tokens: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    for node in range(size):
        parent = int(rng.integers(-1, node)) if rng.random() < 0.5 else node - 1
        depth = 0 if parent < 0 else depths[parent] + 1
        used = {token for token, other in zip(tokens, parents, strict=True) if other == parent}
        wanted = right[depth] if depth < len(right) and rng.random() < 0.7 else int(rng.integers(0, 99))
        token = next(candidate for candidate in (wanted, *range(100, 200)) if candidate not in used)
        tokens.append(token)
        parents.append(parent)
        depths.append(depth)
    return DraftTree(tuple(tokens), tuple(parents))
