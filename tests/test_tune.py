"""``edgespec tune`` on bundles made on the fly. What is measured is not looked at, since machines differ; what is counted is."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

import edgespec as package
from edgespec.bench import charts
from edgespec.bench.prompts import Question
from edgespec.bench.tune import Tuning, drafters_of, expected_speedups, of_a_length, runs_of, tune
from edgespec.cli.tune import choice, drafter_table
from edgespec.errors import UsageError
from edgespec.runtime.tuning.cost import Costs
from tests.cli.conftest import Run, assert_one_line_error, edgespec, own_cache
from tests.helpers.bundles import alphabet_table, make_lookup_bundle

__all__ = ["edgespec", "own_cache"]  # fixtures

QUESTIONS = [Question("one", "a"), Question("two", "q")]
COSTS = Costs({1: 4.0, 2: 4.4, 4: 5.2, 8: 7.0}, {"draft": 0.5}, True)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """The alphabet, with a draft that is wrong once in it."""
    table = alphabet_table()
    table[ord("m")] = ord("!")
    return make_lookup_bundle(tmp_path / "bundle", draft_table=table)


@pytest.fixture
def tuning(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Tuning:
    monkeypatch.setattr("edgespec.runtime.tuning.cost.measure", lambda *_: COSTS)
    with package.load(bundle, threads=1) as engine:
        return tune(engine, [*QUESTIONS, Question("long", "x" * 500)], max_new_tokens=36)


def test_positions_are_counted(tuning: Tuning) -> None:
    found = {drafter.name: drafter for drafter in tuning.drafters}
    assert tuning.questions == 2
    assert "500" in tuning.skipped[0]
    draft = found["draft"]
    assert draft.proposes == 1
    assert len(draft.by_position) == 7
    assert all(0.7 < chance <= 1 for chance in draft.by_position)
    assert 0 < found["ngram"].proposes < 0.7, "nothing repeats before the alphabet comes round"
    assert found["ngram"].by_position == (1.0,) * 7


def test_the_best_length_follows_from_costs_and_positions(tuning: Tuning) -> None:
    best = tuning.best
    assert best is not None
    assert best.name == "draft"
    passes = [COSTS.of_width(1 + length) / 4.0 for length in range(8)]
    assert best.speedups == pytest.approx(expected_speedups(passes, 0.125, 1.0, best.by_position))
    assert best.speedups[best.best_length] == max(best.speedups)
    assert f"draft with {best.best_length} tokens" in choice(tuning)
    assert "draft" in drafter_table(tuning)
    json.dumps(tuning.as_dict(), allow_nan=False)


def test_nothing_is_best_that_is_slower_than_plain_decoding(tuning: Tuning) -> None:
    slow = tuple(dataclasses.replace(found, speedups=found.speedups and (0.8, 0.9, 0.7), measured=0.9) for found in tuning.drafters)
    slow_tuning = dataclasses.replace(tuning, drafters=slow)
    assert slow_tuning.best is None
    assert "no drafter gains" in choice(slow_tuning)


def test_a_tree_counts_with_the_speed_that_was_measured(tuning: Tuning) -> None:
    (tree,) = (found for found in tuning.drafters if found.name == "tree")
    assert (tree.speedups, tree.best_length, tree.speedup) == ((), None, tree.measured)
    assert tree.by_position[0] > 0.3, "the draft is wrong once in the alphabet, but of siblings one is right"
    fast = dataclasses.replace(tree, measured=9.0)
    with_fast = dataclasses.replace(tuning, drafters=(*(found for found in tuning.drafters if found is not tree), fast))
    assert with_fast.best is fast
    assert "tree, which sizes its drafts itself, measured 9.00x" in choice(with_fast)
    assert with_fast.as_dict()["choice"] == {"drafter": "tree", "draft_length": None, "speedup": 9.0}


def test_expected_speed_is_the_papers() -> None:
    """Equation 1 of Leviathan et al. 2023, with passes that cost the same at every width."""
    chance, step = 0.8, 0.1
    found = expected_speedups([1.0] * 6, step, 1.0, [chance] * 5)
    assert found == pytest.approx([(1 - chance ** (k + 1)) / ((1 - chance) * (1 + k * step)) for k in range(6)])
    assert expected_speedups([1.0] * 6, step, 0.0, [chance] * 5) == pytest.approx([1.0] * 6)
    assert expected_speedups([1.2, 1.2], 0.0, 1.0, [0.0]) == pytest.approx([1 / 1.2] * 2), "exactness may cost something"


def test_a_later_engine_begins_with_what_was_found(tuning: Tuning, bundle: Path, tmp_path: Path) -> None:
    assert tuning.drafters
    (stored,) = (tmp_path / "cache").glob("acceptance-*")
    with package.load(bundle, threads=1) as engine:
        engine.generate("a", max_new_tokens=2)
        (policy,) = (policy for (name, _), policy in engine._drafting._last_policies.items() if name == "draft")
        assert policy.acceptance.tried
    stored.unlink()
    with package.load(bundle, threads=1) as engine:
        assert engine._drafting._known_acceptance == {}


@pytest.mark.parametrize("content", ["[]", "{", '{"draft": 1}', '{"draft": {"accepted": [[2, 1]], "all": [], "offered": []}}'])
def test_a_damaged_file_is_passed_over(tuning: Tuning, bundle: Path, tmp_path: Path, content: str) -> None:
    assert tuning.drafters
    (path,) = (tmp_path / "cache").glob("acceptance-*")
    path.write_text(content)
    with package.load(bundle, threads=1) as engine:
        assert engine.generate("a", max_new_tokens=3).text == "bcd"
        assert engine._drafting._known_acceptance == {}


def test_the_command(edgespec: Run, bundle: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"category": question.category, "turns": [question.text]}) + "\n" for question in QUESTIONS))
    options = ("--prompts", prompts, "--max-new-tokens", "40", "--threads", "1")
    done = edgespec("tune", bundle, *options)
    assert done.code == 0, done.err
    for part in ("tokens in the pass", "proposes", "draft", "ngram", "best", "measured"):
        assert part in done.out
    data = json.loads(edgespec("tune", bundle, *options, "--json").out)
    assert [found["name"] for found in data["drafters"]] == ["ngram", "draft", "tree", "lookahead"]
    assert {"pass_ms", "choice", "auto", "machine", "quiet"} <= set(data)


@pytest.mark.parametrize(("name", "start"), [("out.svg", b"<?xml"), ("out.PNG", b"\x89PNG")])
def test_the_plot(tuning: Tuning, tmp_path: Path, name: str, start: bytes) -> None:
    pytest.importorskip("matplotlib")
    charts.check_chart_file(tmp_path / name, "--plot")
    charts.write_tuning_chart(tmp_path / name, tuning)
    assert (tmp_path / name).read_bytes().startswith(start)


def test_bad_input_is_one_line_before_any_work(edgespec: Run, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.cli.tune.open_engine", lambda *_: pytest.fail("work has begun"))
    assert_one_line_error(edgespec("tune", bundle, "--plot", tmp_path / "a.pdf"), "a.pdf", ".svg or .png")
    assert_one_line_error(edgespec("tune", bundle, "--plot", tmp_path / "no" / "a.svg"), "no such folder")
    assert_one_line_error(edgespec("tune", bundle, "--prompts", tmp_path / "none.jsonl"), "none.jsonl")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert_one_line_error(edgespec("tune", bundle, "--plot", tmp_path / "a.svg"), "edgespec[bench]")


def test_no_question_that_fits(bundle: Path) -> None:
    with package.load(bundle, threads=1) as engine:
        assert runs_of(engine, QUESTIONS) == 2 * (2 + len(drafters_of(engine)) + len(of_a_length(engine)))
        with pytest.raises(UsageError, match="no question could be answered"):
            tune(engine, [Question("a", "x" * 500)])
        with pytest.raises(UsageError, match="every answer is a single token"):
            tune(engine, [Question("a", "x")], max_new_tokens=1)
