"""The tree drafter: its cache, which nodes it chooses, and that the text is plain decoding's."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec.bundle import open_bundle
from edgespec.runtime import Engine, load
from edgespec.runtime.drafters import Round
from edgespec.runtime.drafters.chances import FIRST, Chances, rising
from edgespec.runtime.drafters.growth import Growth, most_per_millisecond
from edgespec.runtime.drafters.tree import TokenTree, TreeCosts, TreeOptions, shape
from edgespec.runtime.drafters.tree_cache import TreeCache
from edgespec.runtime.models.model import Model
from edgespec.runtime.options import GenerationOptions
from edgespec.runtime.sampling.sampling import make_sampler
from edgespec.tree import DraftTree
from tests.helpers.bundles import make_attention_bundle, make_lookup_bundle

CONTEXT = [*b"hello there"]
GREEDY = make_sampler(GenerationOptions())


def open_draft(bundle: Path, capacity: int = 100) -> Model:
    spec = open_bundle(bundle).models["draft"]
    return Model(bundle / spec.graph, spec, capacity=capacity, threads=1, providers=["CPUExecutionProvider"], alone=False)


def make(*models: Model, vocabulary: int = 259, **options: Any) -> TokenTree:
    return TokenTree([TreeCache(model) for model in models], vocabulary, TreeOptions(GREEDY.draft_several, **options))


def probabilities_after(model: Model, text: list[int]) -> np.ndarray:
    model.keep(0)
    row = model.run(text, [len(text) - 1])[0].astype(np.float64)
    row = np.exp(row - row.max())
    return row / row.sum()


def test_over_rounds_the_tree_is_that_of_a_fresh_draft(attention_bundle: Path) -> None:
    drafter, other = make(open_draft(attention_bundle)), open_draft(attention_bundle)
    context = list(CONTEXT)
    rng = np.random.default_rng(0)
    # Each round goes down some path of the tree, or of none, and then elsewhere.
    for _ in range(12):
        tree = drafter.propose(context, 8)
        assert len(tree) == 8
        for node in range(-1, 8):
            path = [tree.tokens[step] for step in tree.ancestors(node)]
            likely = np.argsort(-probabilities_after(other, [*context, *path]))
            children = [tree.tokens[child] for child in tree.children(node)]
            assert children == likely[: len(children)].tolist()
        end = int(rng.integers(-1, 8))
        context += [*(tree.tokens[step] for step in tree.ancestors(end)), int(rng.integers(0, 200))]
        drafter.observe(Round(context, tree, tuple(tree.ancestors(end))))


def test_rows_of_the_accepted_path_are_not_run_again(attention_bundle: Path) -> None:
    model, other = open_draft(attention_bundle), open_draft(attention_bundle)
    cache, growth = TreeCache(model), Growth(True)
    cache.begin(CONTEXT, 259)
    a, b = growth.add(-1, 5, 0.6), growth.add(-1, 7, 0.3)
    cache.score(growth, [a, b])
    c, d = growth.add(a, 8, 0.5), growth.add(b, 9, 0.5)
    scored = cache.score(growth, [c, d])[1]
    np.testing.assert_allclose(scored, other.run([*CONTEXT, 7, 9], [len(CONTEXT) + 1])[0], atol=1e-4)
    ran: list[int] = []
    run = model.run
    model.run = lambda tokens, *more, **others: ran.append(len(tokens)) or run(tokens, *more, **others)  # type: ignore[method-assign]
    other.keep(0)
    expected = other.run([*CONTEXT, 7, 9, 4], [len(CONTEXT) + 2])[0]
    np.testing.assert_allclose(cache.begin([*CONTEXT, 7, 9, 4], 259), expected, atol=1e-4)
    assert ran == [1]
    assert model.tokens == [*CONTEXT, 7, 9, 4]


def test_it_proposes_nothing_where_the_draft_cannot_follow(attention_bundle: Path) -> None:
    model = open_draft(attention_bundle)
    assert len(make(model, vocabulary=200).propose([1, 201], 4)) == 0
    assert max(make(model, vocabulary=10).propose([1, 2], 4).tokens) < 10
    assert len(make(model).propose([1, 2], 0)) == 0


def test_a_small_cache_sees_the_end_of_a_long_text(attention_bundle: Path) -> None:
    small, other = open_draft(attention_bundle, capacity=24), open_draft(attention_bundle)
    drafter = make(small)
    text = np.random.default_rng(5).integers(0, 200, 60).tolist()
    first = 0
    for end in range(2, 60):
        tree = drafter.propose(text[:end], 4)
        if end - first > 12:  # half of the cache is kept for the tree
            first = end - 6
        likeliest = np.argsort(-probabilities_after(other, text[first:end]))
        assert tree.tokens[0] == likeliest[0]
        assert small.length <= 24
        drafter.observe(Round(text[: end + 1], tree, ()))


def test_two_drafts_are_merged(tmp_path: Path) -> None:
    tables = [np.full((259, 259), -20.0, np.float32) for _ in range(2)]
    tables[0][:, 5], tables[0][:, 6] = np.log(0.9), np.log(0.1)
    tables[1][:, 7], tables[1][:, 6] = np.log(0.6), np.log(0.4)
    models = [open_draft(make_lookup_bundle(tmp_path / str(index), draft_table=table)) for index, table in enumerate(tables)]
    tree = make(*models).propose([1], 3)
    assert [tree.tokens[child] for child in tree.children(-1)] == [5, 7, 6], "0.45, 0.3 and 0.25"
    assert make(models[0]).propose([1], 2).tokens == (5, 5)


def test_a_level_is_drafted_only_if_it_pays(attention_bundle: Path) -> None:
    model = open_draft(attention_bundle)
    for level_ms, fewest, most in ((0.0, 3, 8), (0.6, 1, 2), (50.0, 0, 0)):
        drafter = make(model, costs=TreeCosts(lambda width: 10.0 + 0.1 * width, level_ms * 10))
        passes = model.passes
        tree = drafter.propose(CONTEXT, 8)
        assert fewest <= model.passes - passes <= most
        assert bool(len(tree)) == bool(most)
    # What was learnt fades, so there is another try.
    drafter = make(model, costs=TreeCosts(lambda width: 10.0 + 0.1 * width, 3.0))
    proposed = []
    for _ in range(400):
        tree = drafter.propose(CONTEXT, 8)
        proposed.append(len(tree) > 0)
        drafter.observe(Round([*CONTEXT, 250], tree, ()))
    assert proposed[0]
    assert 2 < sum(proposed) < 60
    assert any(proposed[100:])
    assert drafter.off is None or "no tree gains 2%" in drafter.off


@pytest.mark.parametrize("branches", [True, False])
def test_the_shape_is_the_best_there_is(branches: bool) -> None:
    """Against all trees of five nodes whose children have the lowest ranks."""
    by_rank = (0.6, 0.25, 0.1)

    def value_of(parents: tuple[int, ...]) -> float:
        growth = Growth(branches)
        counts = dict.fromkeys(range(-1, 5), 0)
        for parent in parents:
            if counts[parent] == len(by_rank):
                return 0.0
            growth.add(parent, counts[parent], by_rank[counts[parent]])
            counts[parent] += 1
        return sum(growth.values)

    best = max(value_of(parents) for parents in itertools.product(*(range(-1, node) for node in range(5))))
    growth, count, _ = shape(by_rank, 5, branches, None)
    assert count == len(growth) == 5
    assert sum(growth.values) == pytest.approx(best)
    if not branches:
        assert growth.tree(range(5)).parents[:3] == (-1, 0, 1)


def test_the_shape_within_its_costs() -> None:
    cheap = TreeCosts(lambda width: 1.0 + 0.001 * width, 0.01)
    wide = TreeCosts(lambda width: float(width), 0.0)
    slow = TreeCosts(lambda width: 1.0 + 0.001 * width, 2.0)
    assert shape(FIRST, 12, True, cheap)[1] == 12
    assert shape(FIRST, 12, True, wide)[1] == 0
    assert shape(FIRST, 12, True, slow)[1] == 0
    growth, count, rate = shape(FIRST, 12, True, TreeCosts(lambda width: 1.0 + 0.1 * width, 0.05))
    assert 1 < count < 12
    values = [growth.values[node] for node in range(count)]
    depth = max(growth.tree(range(count)).depths())
    assert rate == pytest.approx((1 + sum(values)) / (1.1 + 0.1 * count + 0.05 * depth))


def test_growth_lays_the_first_path_first() -> None:
    growth = Growth(branches=False)
    a = growth.add(-1, 5, 0.6)
    b = growth.add(-1, 7, 0.3)
    c = growth.add(b, 8, 0.9)
    d = growth.add(a, 6, 0.5)
    assert growth.values == pytest.approx([0.6, 0.15, 0.135, 0.3]), "a node beside the first path counts for half"
    assert growth.best(3) == [a, d, b]
    assert growth.tree([b, a, d, c]) == DraftTree((5, 6, 7, 8), (-1, 0, -1, 2))
    assert growth.tree([a, b]) == DraftTree((5, 7), (-1, -1))
    assert growth.path(c) == [7, 8]


def test_most_per_millisecond() -> None:
    assert most_per_millisecond([0.9, 0.5, 0.01], lambda width: 1 + 0.1 * width, 0.0)[0] == 2
    assert most_per_millisecond([], lambda width: float(width), 1.0) == (0, 0.5)


def test_chances_come_true() -> None:
    """Candidates of 0.9 and 0.05, of which the second is right a third of the time and the first half of it."""
    chances = Chances()
    assert chances.by_rank == pytest.approx(FIRST)
    tree, rng = DraftTree((5, 7), (-1, -1)), np.random.default_rng(0)
    for _ in range(600):
        chances.observe(tree, [0.9, 0.05], [int(rng.choice([5, 7, 9], p=[0.5, 1 / 3, 1 / 6])), 3])
    # Fifty observations count; four standard deviations are 0.28.
    assert chances.of(0.9) == pytest.approx(0.5, abs=0.28)
    assert chances.of(0.05) == pytest.approx(1 / 3, abs=0.28)
    assert all(chances.of(low) <= chances.of(high) for low, high in itertools.pairwise(np.linspace(0.0001, 1, 200)))
    for _ in range(2000):
        chances.rest()
    assert chances.by_rank == pytest.approx(FIRST, abs=1e-3)


def test_another_text_begins_with_what_the_draft_is_worth() -> None:
    """Its own probabilities are trusted half as much as they were; how often it is right begins between the last text and the usual."""
    last, tree = Chances(), DraftTree((5,), (-1,))
    for _ in range(200):
        last.observe(tree, [0.9], [7])
    chances = last.for_another_text()
    seldom = Chances(usual=0.1)
    assert seldom.by_rank[0] == seldom.for_another_text().by_rank[0] == pytest.approx(0.3), "as the export found, and some hope"
    assert last.of(0.85) < chances.of(0.85) < (last.of(0.85) + Chances().of(0.85)) / 2
    assert last.by_rank[0] < 0.1
    assert chances.by_rank[0] == pytest.approx((2 * last.by_rank[0] + FIRST[0]) / 3)
    chances.observe(tree, [0.9], [5])
    assert last.of(0.9) < chances.of(0.9), "they are apart"


@pytest.mark.parametrize(("seed", "acceptance"), [(None, "auto"), (4, "match")])
@pytest.mark.parametrize("window", [None, 12])
def test_every_tree_gives_the_plain_text(tmp_path: Path, seed: int | None, acceptance: str, window: int | None) -> None:
    bundle = make_attention_bundle(tmp_path / "b", draft_noise=0.2, max_width=16, window=window)
    sampling = {} if seed is None else {"do_sample": True, "temperature": 5.0, "seed": seed, "acceptance": acceptance}
    with load(bundle, threads=1) as engine:
        accepted = moved = seeded = 0
        for prompt in (list(range(1, 30)), CONTEXT):
            plain = engine.generate(prompt, drafter="none", max_new_tokens=60, ignore_eos=True, **sampling)
            for length, exactness in itertools.product((1, 4, 15, "auto"), ("exact", "fast")):
                found = engine.generate(
                    prompt, drafter="tree", draft_length=length, max_new_tokens=60, ignore_eos=True, exactness=exactness, **sampling
                )
                assert found.token_ids == plain.token_ids, (length, exactness)
                accepted += found.stats.accepted
                moved += found.stats.from_branches
                seeded += found.stats.seeded
        assert accepted > 100
        assert moved > 0
        assert seeded > 0


def test_a_seed_repeats_the_text_of_a_drawn_tree(attention: Engine) -> None:
    options = {"do_sample": True, "temperature": 5.0, "seed": 3, "acceptance": "ratio", "drafter": "tree", "draft_length": 5}
    first = attention.generate("hello", max_new_tokens=40, **options)
    assert attention.generate("hello", max_new_tokens=40, **options).token_ids == first.token_ids
    assert first.stats.accepted > 0


def test_rising() -> None:
    assert rising([1.0, 3.0, 2.0, 4.0], [1, 1, 1, 1]) == [1.0, 2.5, 2.5, 4.0]
    assert rising([3.0, 2.0, 1.0], [1, 1, 2]) == [1.75, 1.75, 1.75]
    assert rising([], []) == []
