"""accept: the longest agreed path and one more token."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec.errors import RuntimeFailure
from edgespec.runtime.accept import Accepted, accept
from edgespec.runtime.sampling.sampling import greedy
from edgespec.tree import DraftTree


def rows(*tokens: int) -> np.ndarray:
    return np.eye(10, dtype=np.float32)[list(tokens)]


@pytest.mark.parametrize(
    ("says", "path", "tokens"),
    [((5, 6, 7, 8), (0, 1, 2), (5, 6, 7, 8)), ((5, 6, 1, 8), (0, 1), (5, 6, 1)), ((1, 6, 7, 8), (), (1,))],
)
def test_chain(says: tuple[int, ...], path: tuple[int, ...], tokens: tuple[int, ...]) -> None:
    assert accept(DraftTree.chain([5, 6, 7]), rows(*says), greedy) == Accepted(path, tokens)


def test_no_drafts_give_one_token() -> None:
    assert accept(DraftTree(), rows(4), greedy) == Accepted((), (4,))


def test_worked_example_takes_the_branch() -> None:
    tree = DraftTree((5, 6, 7), (-1, 0, -1))
    assert accept(tree, rows(7, 0, 0, 9), greedy) == Accepted((2,), (7, 9))
    assert accept(tree, rows(5, 6, 3, 9), greedy) == Accepted((0, 1), (5, 6, 3))


def test_without_branches_only_the_first_path_commits() -> None:
    tree = DraftTree((5, 6, 7), (-1, 0, -1))
    assert accept(tree, rows(7, 0, 0, 9), greedy, branches=False) == Accepted((), (7,))
    assert accept(tree, rows(5, 6, 3, 9), greedy, branches=False) == Accepted((0, 1), (5, 6, 3))


def test_sampler_is_called_once_per_token_in_order() -> None:
    seen: list[int] = []

    def sampler(row: np.ndarray, *_: object) -> int:
        seen.append(int(row.argmax()))
        return seen[-1]

    accept(DraftTree.chain([5, 6, 7]), rows(5, 1, 7, 8), sampler)
    assert seen == [5, 1]


def test_nan_is_an_error_wherever_it_is() -> None:
    logits = rows(5)
    logits[0, 9] = np.nan
    with pytest.raises(RuntimeFailure, match="not finite"):
        accept(DraftTree(), logits, greedy)
