"""Which drafted tokens the target agrees with. Pure numpy.

The example of edgespec.tree: tokens (5, 6, 7), parents (-1, 0, -1). Row 0 of the logits belongs to the last token before
the tree, row 1 to the 5, row 2 to the 6 and row 3 to the 7. If the target says 7 at row 0 and 9 at row 3, node 2 is
accepted and the round gives the tokens 7, 9.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from edgespec.runtime.sampling.processors import Floats, Text
from edgespec.runtime.sampling.sampling import Chooser
from edgespec.tree import DraftTree


@dataclasses.dataclass(frozen=True)
class Accepted:
    """``path`` are the accepted nodes in order; ``tokens`` their tokens and one more, the target's own. Where the last row
    was in doubt that one is missing and the result is ``open``."""

    path: tuple[int, ...]
    tokens: tuple[int, ...]
    open: bool = False


def accept(
    tree: DraftTree,
    logits: Floats,
    choose: Chooser,
    *,
    context: Sequence[int] = (),
    branches: bool = True,
    in_doubt: Callable[[Floats, Text], bool] | None = None,
) -> Accepted:
    """The longest path of ``tree`` that the sampler agrees with, and the token that it says after it.

    Args:
        tree: n drafted nodes.
        logits: [1 + n, V], row 0 for the last known token and row 1 + i for node i.
        choose: called once per token of the result, in order, with the row before it, the text before it (which
            counts the tokens accepted so far) and the drafted tokens for its place.
        context: the tokens before the tree.
        branches: without it only the tree's first path commits tokens, the nodes whose cache rows lie side by side
            behind the root. A row behind masked siblings sums in another order, and under quantised activations its
            logits are then not bit for bit those of plain decoding.
        in_doubt: says of a row and the text before it whether its choice could be another in a pass of another width. The
            result ends before such a row.
    """
    path: list[int] = []
    tokens: list[int] = []
    node = -1
    while True:
        children = (
            tree.children(node) if branches else [child for child in (node + 1,) if child < len(tree) and tree.parents[child] == node]
        )
        text = Text(context, tokens)
        if in_doubt is not None and in_doubt(logits[node + 1], text):
            return Accepted(tuple(path), tuple(tokens), open=True)
        candidates = [(tree.tokens[child], tree.q_of(child)) for child in children]
        token = choose(logits[node + 1], text, candidates)
        tokens.append(token)
        node = next((child for child in children if tree.tokens[child] == token), -1)
        if node < 0:
            return Accepted(tuple(path), tuple(tokens))
        path.append(node)
