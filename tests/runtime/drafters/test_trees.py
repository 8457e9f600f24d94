"""Random trees: verifying one equals verifying each of its paths, and the text is that of plain decoding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from edgespec.bundle import open_bundle
from edgespec.runtime import Engine, drafters, load
from edgespec.runtime.drafters import Drafter, Resources, Round
from edgespec.runtime.drafters.proposer import Proposer, Source
from edgespec.runtime.drafters.seeds import begin_with, seed_of
from edgespec.runtime.models.model import Model
from edgespec.runtime.tuning.controller import FixedLength
from edgespec.tree import DraftTree
from tests.helpers.bundles import make_attention_bundle
from tests.helpers.trees import tree_around, trees

PROMPT = [7, 3, 11, 5, 2, 90, 41, 8, 64, 200, 13, 1, 2, 3]
EXAMPLE = DraftTree((5, 6, 7), (-1, 0, -1))  # that of edgespec.tree
QUICK = settings(max_examples=30, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module", params=[None, 8])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Model]:
    """Twice the same model of float32, its second layer with a window or without."""
    bundle = make_attention_bundle(tmp_path_factory.mktemp("trees") / "b", window=request.param, max_width=16)
    spec = open_bundle(bundle).target
    tree, chain = (
        Model(bundle / spec.graph, spec, capacity=128, threads=1, providers=["CPUExecutionProvider"], alone=False) for _ in range(2)
    )
    return tree, chain


@QUICK
@given(tree=trees(), padding=st.integers(0, 3))
@example(tree=DraftTree((8, *[0] * 9, 76), (-1, *[0] * 10)), padding=0)  # logits of 140, off by 3e-4
def test_every_path_of_a_tree_equals_a_chain(models: tuple[Model, Model], tree: DraftTree, padding: int) -> None:
    model, chain = models
    model.keep(0)
    model.run(PROMPT[:-1], [0])
    width = 1 + len(tree)
    parents = (-1, *(parent + 1 for parent in tree.parents))
    out = model.run((PROMPT[-1], *tree.tokens), range(width), parents, width + padding).copy()
    for node in range(-1, len(tree)):
        path = tree.ancestors(node)
        if node >= 0 and tree.children(node):
            continue
        chain.keep(0)
        chain.run(PROMPT[:-1], [0])
        expected = chain.run((PROMPT[-1], *(tree.tokens[step] for step in path)), range(1 + len(path)))
        np.testing.assert_allclose(out[[0, *(step + 1 for step in path)]], expected, atol=1e-5 * np.abs(expected).max())


@QUICK
@given(tree=trees(), data=st.data())
def test_what_follows_a_kept_path_is_what_follows_a_chain(models: tuple[Model, Model], tree: DraftTree, data: st.DataObject) -> None:
    model, chain = models
    path = tree.ancestors(data.draw(st.integers(-1, len(tree) - 1)))
    model.keep(0)
    model.run(PROMPT[:-1], [0])
    model.run((PROMPT[-1], *tree.tokens), [0], (-1, *(parent + 1 for parent in tree.parents)))
    model.keep_path(len(PROMPT) - 1, (0, *(step + 1 for step in path)))
    chain.keep(0)
    chain.run([*PROMPT, *(tree.tokens[step] for step in path)], [0])
    assert model.tokens == chain.tokens
    expected = chain.run([33, 34], [0, 1])
    np.testing.assert_allclose(model.run([33, 34], [0, 1]), expected, atol=1e-5 * np.abs(expected).max())


class AroundTheText(Drafter):
    """Knows the text, and hides it in random trees."""

    name = "around"

    def __init__(self, prompt: int, text: Sequence[int], seed: int) -> None:
        self.prompt, self.text, self.rng = prompt, text, np.random.default_rng(seed)
        self.widest = 0

    def propose(self, context: Sequence[int], max_tokens: int) -> DraftTree:
        self.widest = max(self.widest, max_tokens)
        return tree_around(self.text[len(context) - self.prompt :], int(self.rng.integers(0, max_tokens + 1)), self.rng)


@pytest.mark.parametrize("sampling", [{}, {"do_sample": True, "temperature": 5.0, "seed": 3}])
@pytest.mark.parametrize("width", [2, 3, 16])
def test_random_trees_give_the_plain_text(tmp_path: Path, width: int, sampling: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = make_attention_bundle(tmp_path / "b", max_width=width, window=20)
    kinds = dict(drafters._KINDS)
    monkeypatch.setattr(drafters, "_KINDS", kinds)
    made: list[AroundTheText] = []
    total: Counter[str] = Counter()
    with load(bundle, threads=1) as engine:
        plain = engine.generate(PROMPT, drafter="none", max_new_tokens=60, ignore_eos=True, **sampling)
        for seed in range(4):

            def make(_: Resources, seed: int = seed) -> Drafter:
                made.append(AroundTheText(len(PROMPT), plain.token_ids, seed))
                return made[-1]

            kinds["around"] = drafters.Kind(make)
            for exactness, branches in (("exact", "seed"), ("fast", "commit")):
                found = engine.generate(
                    PROMPT, drafter="around", draft_length=width - 1, max_new_tokens=60, ignore_eos=True, exactness=exactness, **sampling
                )
                assert found.token_ids == plain.token_ids
                assert found.stats.branches == branches or width == 2, "with no other width to agree with, no grade is exact"
                total.update(
                    {
                        f"{exactness} accepted": found.stats.accepted,
                        f"{exactness} moved": found.stats.from_branches,
                        f"{exactness} seeded": found.stats.seeded,
                    }
                )
    assert max(drafter.widest for drafter in made) == width - 1
    assert min(total["fast accepted"], total["exact accepted"]) > 40
    assert total["exact moved"] == total["fast seeded"] == 0
    if width == 16:
        assert total["fast moved"] > 10
        assert total["exact seeded"] > 10


def test_a_branch_that_the_target_chose_is_drafted_next(attention: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = attention.generate(PROMPT, drafter="none", max_new_tokens=40, ignore_eos=True)

    class SecondIsRight(Drafter):
        name = "second"

        def propose(self, context: Sequence[int], max_tokens: int) -> DraftTree:
            right = plain.token_ids[len(context) - len(PROMPT) :][:2]
            wrong = 1 if right[:1] != (1,) else 2
            return DraftTree((wrong, *right), (-1, -1, 1)) if len(right) == 2 <= max_tokens - 1 else DraftTree()

    monkeypatch.setattr(drafters, "_KINDS", {**drafters._KINDS, "second": drafters.Kind(lambda _: SecondIsRight())})
    found = attention.generate(PROMPT, drafter="second", draft_length=3, max_new_tokens=40, ignore_eos=True)
    assert found.token_ids == plain.token_ids
    # Rounds take turns: one commits its own token only, and what the target said on the right branch, two tokens, leads the next.
    assert found.stats.seeded >= 18
    assert found.stats.accepted >= 18


@pytest.mark.parametrize(
    ("path", "written", "seed"),
    [
        ((), (7,), [9]),  # the worked example of seeds.py
        ((), (5,), [6, 8]),
        ((0,), (5, 6), [8]),
        ((0, 1), (5, 6, 8), []),
        ((), (4,), []),
        ((), (5, 6), [8]),  # the 6 was forced behind the 5
        ((), (7, 3), []),
    ],
)
def test_seed_of(path: tuple[int, ...], written: tuple[int, ...], seed: list[int]) -> None:
    choices = np.array([written[0], 6, 8, 9])
    assert seed_of(Round([1, 2, *written], EXAMPLE, path, choices), 2) == seed


@pytest.mark.parametrize(
    ("seed", "most", "tokens", "parents"),
    [
        ([7], 9, (7, 5, 6), (-1, -1, 1)),
        ([7, 9], 9, (7, 9, 5, 6), (-1, 0, -1, 2)),
        ([5], 9, (5, 6, 7), (-1, 0, -1)),
        ([5, 8], 9, (5, 8, 6, 7), (-1, 0, 0, -1)),
        ([4, 3], 4, (4, 3, 5, 6), (-1, 0, -1, 2)),
        ([], 9, (5, 6, 7), (-1, 0, -1)),
    ],
)
def test_begin_with(seed: list[int], most: int, tokens: tuple[int, ...], parents: tuple[int, ...]) -> None:
    assert begin_with(EXAMPLE, seed, most) == DraftTree(tokens, parents)
    assert begin_with(DraftTree(), seed, most) == DraftTree.chain(seed[:most])


@given(tree=trees(), seed=st.lists(st.integers(0, 99), max_size=5))
def test_begin_with_keeps_every_path(tree: DraftTree, seed: list[int]) -> None:
    def paths(of: DraftTree) -> set[tuple[int, ...]]:
        return {tuple(of.tokens[step] for step in of.ancestors(node)) for node in range(len(of))}

    found = begin_with(tree, seed, 99)
    assert paths(found) == paths(tree) | {tuple(seed[:size]) for size in range(1, len(seed) + 1)}
    assert list(found.tokens[: len(seed)]) == seed
    assert found.parents[: len(seed)] == tuple(range(-1, len(seed) - 1))


class Told(FixedLength):
    """Keeps what it hears."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.heard: list[tuple[int, int, int]] = []

    def observe(self, wanted: int, offered: int, accepted: int) -> None:
        self.heard.append((wanted, offered, accepted))


class Fixed(Drafter):
    """Always proposes one tree."""

    name = "fixed"

    def __init__(self, tree: DraftTree) -> None:
        self.tree = tree

    def propose(self, _context: Sequence[int], _max_tokens: int) -> DraftTree:
        return self.tree


def test_a_seed_leads_whoever_proposes_and_is_not_their_merit() -> None:
    silent, speaking = Told(3), Told(3)
    proposer = Proposer([Source(Fixed(DraftTree()), silent), Source(Fixed(EXAMPLE), speaking)], branches=False)
    assert proposer.propose([1], 9) == EXAMPLE
    assert proposer.reads_choices
    proposer.observe(Round([1, 7], EXAMPLE, (), np.array([7, 0, 0, 9])))
    assert silent.heard == [(3, 0, 0)]
    assert speaking.heard == [(3, 3, 0)]
    tree = proposer.propose([1, 7], 9)
    assert tree == DraftTree((9, 5, 6), (-1, -1, 1)), "of the drafter's tree as much as the three nodes hold"
    assert [proposer.author(node) for node in range(3)] == ["seed", "fixed", "fixed"]
    assert proposer.seeded == 1
    proposer.observe(Round([1, 7, 9, 4], tree, (0,), np.array([9, 4, 0, 0])))
    assert len(speaking.heard) == 1
    assert proposer.propose([1, 7, 9, 4], 9) == EXAMPLE, "off the tree there is no seed"


def test_a_seed_that_is_long_enough_needs_no_drafter() -> None:
    told = Told(1)
    drafter = Fixed(EXAMPLE)
    proposer = Proposer([Source(drafter, told)], branches=False)
    proposer.propose([1], 9)
    proposer.observe(Round([1, 7], EXAMPLE, (), np.array([7, 0, 0, 9])))
    drafter.tree = DraftTree.chain([99])
    assert proposer.propose([1, 7], 9) == DraftTree.chain([9])
    assert Proposer([Source(drafter, told)]).propose([1], 9) == DraftTree.chain([99])


def test_where_branches_commit_there_are_no_seeds() -> None:
    proposer = Proposer([Source(Fixed(EXAMPLE), Told(3))])
    proposer.propose([1], 9)
    assert not proposer.reads_choices
    proposer.observe(Round([1, 7, 9], EXAMPLE, (2,)))
    assert proposer.propose([1, 7, 9], 9) == EXAMPLE
