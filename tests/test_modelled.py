"""``benchmarks.modelled``: gains under costs that are given, where they can be told without it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.modelled import given, main, modelled
from edgespec.bench.prompts import Question
from edgespec.bundle import open_bundle
from tests.helpers.bundles import make_lookup_bundle

ASKED = [Question("qa", "abc" * 20 + "a"), Question("rag", "xyzxyzxyzx")]


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path / "cache"))
    return make_lookup_bundle(tmp_path / "bundle")


def test_where_rows_cost_nothing_the_gain_is_the_tokens_of_a_pass(bundle: Path) -> None:
    costs = given(open_bundle(bundle), bundle, 1.0)
    found = modelled(bundle, costs, "ngram", ASKED, 60)
    assert set(found) == {"qa", "rag"}
    for (gain,) in found.values():
        assert gain.speed == pytest.approx(gain.tokens_per_pass)
        assert gain.tokens_per_pass > 1.5, "the alphabet comes round"


def test_where_each_row_costs_a_pass_nothing_is_drafted(bundle: Path) -> None:
    costs = given(open_bundle(bundle), bundle, 4.0)
    for gains in modelled(bundle, costs, "ngram", ASKED, 60).values():
        assert gains == [(pytest.approx(1.0), pytest.approx(1.0))]


def test_the_table(bundle: Path, tmp_path: Path) -> None:
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps({"category": asked.category, "turns": [asked.text]}) + "\n" for asked in ASKED))
    done = CliRunner().invoke(main, [str(bundle), str(questions), "--drafter", "ngram", "--four", "1.05"])
    assert done.exit_code == 0, done.output
    assert "| 1.05 | ngram | " in done.output
