"""Lookahead decoding: its window is the method's, its n-grams are what the target says, and the text is plain decoding's."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec.bundle import open_bundle
from edgespec.errors import UsageError
from edgespec.runtime import Engine, load
from edgespec.runtime.drafters import Resources, Round
from edgespec.runtime.drafters.lookahead import Lookahead, Pool, Window, make_lookahead
from edgespec.runtime.drafters.payoff import IDLE, Payoff
from edgespec.runtime.models.model import Model
from edgespec.tree import DraftTree
from tests.helpers.bundles import alphabet_table, make_attention_bundle, make_lookup_bundle

CONTEXT = [*b"hello there"]


def rounds(drafter: Lookahead, model: Model, context: list[int], count: int, most: int = 20) -> list[DraftTree]:
    """Rounds of which none accepts a draft, against a real model."""
    trees = []
    for _ in range(count):
        tree = drafter.propose(context, most)
        trees.append(tree)
        model.keep(0)
        model.run(context[:-1], [0])
        parents = (-1, *(parent + 1 for parent in tree.parents))
        choices = model.run((context[-1], *tree.tokens), range(1 + len(tree)), parents).argmax(axis=1)
        context = [*context, int(choices[0])]
        drafter.observe(Round(context, tree, (), choices))
    return trees


@pytest.fixture
def model(attention_bundle: Path) -> Model:
    spec = open_bundle(attention_bundle).target
    return Model(attention_bundle / spec.graph, spec, capacity=100, threads=1, providers=["CPUExecutionProvider"], alone=False)


@pytest.mark.parametrize("window", [Window(4, 3, 2), Window(3, 4, 1), Window(5, 2, 1)])
def test_the_window_is_that_of_the_method(model: Model, window: Window) -> None:
    """Row (column i, level l) stands i + 1 + l tokens behind the text, and sees level 0 up to its column and its column up to itself."""
    drafter = Lookahead(window)
    for tree in rounds(drafter, model, CONTEXT, 6):
        columns = [list(column) for column in drafter._shown]
        assert len(tree) <= window.nodes
        for i, column in enumerate(columns):
            assert len(column) == i + window.n - 1
            assert column[:i] == columns[-1][:i]
        for i, column in enumerate(drafter._shown):
            node = tree.find(column)
            if node is not None:  # the window has moved on since, but most of it is still there
                assert tree.depths()[node] == i + window.n - 1
    assert all(0 < len(tree) <= window.nodes for tree in rounds(drafter, model, CONTEXT, 3))


def test_what_goes_to_the_pool_is_what_the_target_says(model: Model) -> None:
    """Every n-gram ends with the target's own choice after its column, and next its levels are those of before, one further."""
    window = Window(4, 3, 2)
    drafter = Lookahead(window)
    context = list(CONTEXT)
    for _ in range(6):
        tree = drafter.propose(context, 20)
        before, shown = [list(level) for level in drafter._levels], list(drafter._shown)
        model.keep(0)
        model.run(context[:-1], [0])
        choices = model.run((context[-1], *tree.tokens), range(1 + len(tree)), (-1, *(parent + 1 for parent in tree.parents))).argmax(
            axis=1
        )
        expected = []
        for column in shown:
            model.keep(0)
            expected.append(int(model.run([*context, *column], [len(context) + len(column) - 1])[0].argmax()))
        context.append(int(choices[0]))
        drafter.observe(Round(context, tree, (), choices))
        assert drafter._levels == [before[1], expected]
        for i, column in enumerate(shown):
            tails = list(drafter._pool.after(before[0][i]))
            assert (column[-1], expected[i]) in tails or before[0].count(before[0][i]) > 1


def test_columns_that_the_text_has_passed_go() -> None:
    drafter = Lookahead(Window(4, 3, 1))
    tree = drafter.propose(CONTEXT, 20)
    second = list(drafter._levels[1])
    choices = np.arange(100, 101 + len(tree))
    said = [int(choices[tree.find(column) + 1]) for column in drafter._shown]  # type: ignore[operator]
    drafter.observe(Round([*CONTEXT, 1, 2, 3], tree, (0, 1), choices))
    assert drafter._levels[0][:2] == second[2:]
    assert drafter._levels[1][:2] == said[2:]
    assert all(len(level) == 4 for level in drafter._levels)


def test_another_ones_round_leaves_the_window_as_it_is() -> None:
    drafter = Lookahead(Window(4, 3, 1))
    drafter.propose(CONTEXT, 20)
    before = [list(level) for level in drafter._levels]
    drafter.observe(Round([*CONTEXT, 1], DraftTree.chain([1, 2]), (), np.zeros(3, np.int64)))
    assert drafter._levels == before


def test_another_ones_round_says_nothing_of_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    payoff = Payoff(lambda width: 1.0 + width / 100)
    drafter = Lookahead(Window(), payoff=payoff)
    tree = drafter.propose(CONTEXT, 12)
    drafter.observe(Round([*CONTEXT, 1], tree, (), np.zeros(1 + len(tree), np.int64)))
    monkeypatch.setattr(payoff, "observe", lambda *_: pytest.fail("counted as its own"))
    for _ in range(20):  # n-grams are asked, and right
        drafter.observe(Round([*CONTEXT, 1, 2, 3], DraftTree.chain([1, 2]), (0, 1), np.zeros(3, np.int64)))


def test_a_text_that_repeats_itself_comes_by_the_ngram(tmp_path: Path) -> None:
    """The second alphabet is drafted from the pool, two tokens at a time."""
    bundle = make_lookup_bundle(tmp_path / "b", alphabet_table(), max_width=16)
    with load(bundle) as engine:
        found = engine.generate("zzzz", drafter="lookahead", draft_length=12, max_new_tokens=26 * 2)
        assert found.text == ("abcdefghijklmnopqrstuvwxyz" * 2)
        assert found.stats.target_passes <= 26 + 26 / 3 + 1
        assert found.stats.draft_passes == 0


def test_a_pool_keeps_the_latest() -> None:
    pool = Pool(each=2, most=3)
    for ngram in ((1, 2, 3), (1, 4, 5), (1, 2, 3), (1, 6, 7)):
        pool.add(ngram)
    assert list(pool.after(1)) == [(6, 7), (2, 3)]
    assert list(pool.after(9)) == []
    for first in (2, 3):
        pool.add((first, 0, 0))
    pool.after(1)
    pool.add((4, 0, 0))
    assert len(pool) == 3
    assert list(pool.after(2)) == [], "used longest ago"
    assert list(pool.after(1)) != []


@pytest.mark.parametrize("window", [Window(), Window(5, 4, 4), Window(3, 2, 1), Window(1, 5, 3)])
def test_a_window_gives_way(window: Window) -> None:
    for most in range(1, 40):
        found = window.within(most)
        assert found.nodes <= max(most, window.n - 1)
        assert found.g >= 1
        assert found.w <= window.w
        tree = Lookahead(window).propose(CONTEXT, most)
        assert len(tree) <= most
    assert window.within(40) == window


@pytest.mark.parametrize("sampling", [{}, {"do_sample": True, "temperature": 5.0, "seed": 3}])
def test_every_window_gives_the_plain_text(tmp_path: Path, sampling: dict[str, Any]) -> None:
    bundle = make_attention_bundle(tmp_path / "b", max_width=16, window=20)
    accepted = 0
    with load(bundle, threads=1) as engine:
        for prompt in ([1, 2, 3, 4] * 5, CONTEXT):
            plain = engine.generate(prompt, drafter="none", max_new_tokens=60, ignore_eos=True, **sampling)
            for length, exactness, window in itertools.product((1, 7, 15, "auto"), ("exact", "fast"), (None, (3, 4, 2), (10, 2, 5))):
                found = engine.generate(
                    prompt,
                    drafter="lookahead",
                    draft_length=length,
                    lookahead=window,
                    max_new_tokens=60,
                    ignore_eos=True,
                    exactness=exactness,
                    **sampling,
                )
                assert found.token_ids == plain.token_ids, (length, exactness, window)
                accepted += found.stats.accepted
    assert accepted > 100


def test_a_conversation_keeps_its_pool(attention: Engine) -> None:
    chat = attention.chat(drafter="lookahead", draft_length=7, max_new_tokens=20)
    chat.send("hello").result()
    (pool,) = attention._drafting.kept[chat].values()
    size = len(pool)
    chat.send("and?").result()
    assert list(attention._drafting.kept[chat].values()) == [pool]
    assert len(pool) >= size > 0
    attention.generate("other", drafter="lookahead", max_new_tokens=5)
    assert len(attention._drafting.kept) == 1


def test_the_statistics_say_that_it_rests(attention: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with_costs = Lookahead(Window(), payoff=Payoff(lambda width: float(width)))
    assert with_costs.off is None
    for _ in range(20):
        tree = with_costs.propose(CONTEXT, 12)
        with_costs.observe(Round([*CONTEXT, 1], tree, (), np.zeros(1 + len(tree), np.int64)))
    assert with_costs.off is not None
    assert len(with_costs.propose(CONTEXT, 12)) == 0
    monkeypatch.setattr(attention._drafting, "_pass_ms", lambda _widths, count: float(count))
    found = attention.generate([7, 200, 3], drafter="lookahead", max_new_tokens=120, ignore_eos=True)
    assert found.stats.speculation_off is not None
    assert found.stats.speculation_off.startswith("lookahead: its rows cost more")


def test_it_rests_while_it_does_not_pay() -> None:
    payoff = Payoff(lambda width: 1.0 + 0.1 * width)
    asked = 0
    for _ in range(2000):
        if payoff.pays():
            asked += 1
            payoff.observe(12, 0)
        else:
            payoff.rest()
    assert 10 < asked < 300
    good = Payoff(lambda width: 1.0 + 0.1 * width)
    for _ in range(200):
        good.observe(12, 2)
    assert good.pays()
    assert Payoff(None).pays()
    assert 0 < IDLE < 1


def test_another_text_begins_with_what_the_last_one_has_shown() -> None:
    def tries(payoff: Payoff) -> int:
        asked = 0
        while payoff.pays():
            payoff.observe(12, 0)
            asked += 1
        return asked

    resources = Resources(vocabulary=256, models=lambda _: [], choose=no_choice, guess=no_choice, pass_ms=lambda width: 1.0 + 0.1 * width)
    found = []
    for _ in range(3):
        drafter = make_lookahead(resources)
        found.append(tries(drafter._payoff))
    assert found[0] > 4
    assert 0 < max(found[1:]) <= found[0] / 2
    hopeful = drafter._payoff.for_another_text(resources.pass_ms)
    for _ in range(100):
        hopeful.observe(12, 2)
    assert hopeful.gain > 1.2


def no_choice(*_: Any) -> Any:
    raise AssertionError("lookahead asks no model")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lookahead": (4, 3)}, "lookahead: .4, 3. is not three numbers"),
        ({"lookahead": (4, 1, 2)}, "N from 2"),
        ({"lookahead": (0, 3, 2)}, "W and G from 1"),
        ({"lookahead": (4, 3, 2.0)}, "not three numbers"),
        ({"lookahead": "4,3,2"}, "not three numbers"),
        ({"lookahead": (4, 3, 2)}, r"need a pass of .* = 13 tokens, and this bundle's graph verifies 8"),
        ({"lookahead": (1, 2, 1), "drafter": "ngram"}, "has no effect with drafter 'ngram'"),
    ],
)
def test_windows_that_cannot_be(attention: Engine, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        attention.stream("hello", **{"drafter": "lookahead", **options})
    assert "\n" not in str(caught.value)
