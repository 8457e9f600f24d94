"""The draft tree: its worked example, and what holds for every tree."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.tree import DraftTree
from tests.helpers.trees import trees

# The example of the module's docstring: "5 6" and, instead of 5, "7".
EXAMPLE = DraftTree((5, 6, 7), (-1, 0, -1))


def test_worked_example() -> None:
    assert EXAMPLE.depths() == [1, 2, 1]
    assert EXAMPLE.ancestors(1) == [0, 1]
    assert EXAMPLE.ancestors(2) == [2]
    assert EXAMPLE.children(-1) == [0, 2]
    assert EXAMPLE.children(0) == [1]
    assert not EXAMPLE.is_chain


def test_empty_tree_is_a_chain_of_nothing() -> None:
    assert len(DraftTree()) == 0
    assert DraftTree().is_chain
    assert DraftTree().children(-1) == []


@pytest.mark.parametrize(
    ("tokens", "parents", "message"),
    [
        ((1,), (), "1 tokens but 0 parents"),
        ((1,), (0,), "node 0 has parent 0"),
        ((1, 2), (1, -1), "node 0 has parent 1"),
        ((1,), (-2,), "parent -2"),
    ],
)
def test_impossible_trees_are_refused(tokens: tuple[int, ...], parents: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DraftTree(tokens, parents)


@given(st.lists(st.integers(0, 99), max_size=12))
def test_a_chain_has_one_branch(tokens: list[int]) -> None:
    chain = DraftTree.chain(tokens)
    assert chain.is_chain
    assert chain.depths() == list(range(1, len(tokens) + 1))
    assert all(len(chain.children(node)) <= 1 for node in range(-1, len(tokens)))


@given(trees())
def test_every_tree(tree: DraftTree) -> None:
    """Each node is one child of one parent, and its path from the root is as long as its depth."""
    nodes = [child for parent in range(-1, len(tree)) for child in tree.children(parent)]
    assert sorted(nodes) == list(range(len(tree)))
    for node, depth in enumerate(tree.depths()):
        path = tree.ancestors(node)
        assert len(path) == depth
        assert path[-1] == node
        assert tree.parents[path[0]] == -1
        assert all(tree.parents[child] == parent for parent, child in itertools.pairwise(path))


def test_paths_share_what_they_begin_with() -> None:
    assert DraftTree.of_paths([(5, 6), (7,)], 9) == EXAMPLE
    tree = DraftTree.of_paths([(1, 2, 3), (1, 4), (), (1, 2), (5,)], 9)
    assert tree == DraftTree((1, 2, 3, 4, 5), (-1, 0, 1, 0, -1))
    assert DraftTree.of_paths([(1, 2, 3), (1, 4), (1, 2, 3, 6)], 4) == DraftTree((1, 2, 3, 4), (-1, 0, 1, 0))
    assert DraftTree.of_paths([(1, 2)], 0) == DraftTree()


@given(st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=6), st.integers(0, 12))
def test_every_tree_of_paths(paths: list[list[int]], most: int) -> None:
    tree = DraftTree.of_paths(paths, most)
    wanted = {tuple(path[:size]) for path in paths for size in range(1, len(path) + 1)}
    found = {tuple(tree.tokens[step] for step in tree.ancestors(node)) for node in range(len(tree))}
    assert len(found) == len(tree) == min(most, len(wanted))
    assert found <= wanted
    for path in wanted:
        node = tree.find(path)
        assert (node is not None) == (path in found)
        assert node is None or [tree.tokens[step] for step in tree.ancestors(node)] == list(path)
    assert tree.find(()) == -1
