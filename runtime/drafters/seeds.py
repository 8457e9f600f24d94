"""What a round says about the next one, where only the first path of a tree may commit tokens.

A row behind masked siblings is not bit for bit a row of plain decoding, so under "exact" it commits nothing. It is still the target's own
opinion, and very nearly right. When the target leaves the first path for a token that another branch has, what it said along
that branch is drafted next, ahead of anything that a drafter could guess, and at no cost.

Example: of the tree of edgespec.tree, "5 6" and instead of 5 "7", the target wants 7, and said 9 after the 7. The round
commits the 7 alone, and 9 seeds the next proposal.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.runtime.drafters import Round
from edgespec.tree import DraftTree


def seed_of(found: Round, known: int) -> list[int]:
    """Tokens that the target said it would write after ``found.context``; none if it left the tree.

    Args:
        found: a round with choices.
        known: length of the context when the tree was proposed.
    """
    tree, choices = found.tree, found.choices
    node = found.path[-1] if found.path else -1
    for token in found.context[known + len(found.path) :]:
        node = _child(tree, node, token)
        if node < 0:
            return []
    seed: list[int] = []
    while choices is not None:
        seed.append(int(choices[node + 1]))
        node = _child(tree, node, seed[-1])
        if node < 0:
            break
    return seed


def begin_with(tree: DraftTree, seed: Sequence[int], most: int) -> DraftTree:
    """``tree`` with ``seed`` as its first path, which goes on where the tree does, cut to ``most`` nodes.

    A tree whose tokens were drawn stays as it is: the order of siblings is that of the draws.
    """
    if tree.q or not seed:
        return tree
    first: list[int] = []
    node = -1
    for token in seed:
        node = _child(tree, node, token)
        if node < 0:
            break
        first.append(node)
    missing = seed[len(first) :]
    if not missing:
        while children := tree.children(node):
            node = children[0]
            first.append(node)
    new = list(range(len(tree), len(tree) + len(missing)))  # their numbers until all are numbered anew
    parents = [*tree.parents, *([first[-1] if first else -1, *new][: len(new)])]
    tokens = [*tree.tokens, *missing]
    order = [*first, *new, *sorted(set(range(len(tree))) - set(first))][:most]
    place = {node: index for index, node in enumerate(order)} | {-1: -1}
    return DraftTree(tuple(tokens[node] for node in order), tuple(place[parents[node]] for node in order))


def _child(tree: DraftTree, node: int, token: int) -> int:
    """The child of ``node`` with that token, -1 if there is none."""
    return next((child for child in tree.children(node) if tree.tokens[child] == token), -1)
