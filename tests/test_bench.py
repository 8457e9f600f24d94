"""``edgespec bench`` on a bundle made on the fly: what is asked, what is counted, what is written."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import errno
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import edgespec as package
from edgespec.bench.measure import BASE, PLAIN, arms_of, geometric_mean, measure
from edgespec.bench.prompts import OWN, Question, read_prompts
from edgespec.bench.sample import TARGET, answer_with_origins
from edgespec.errors import UsageError
from edgespec.runtime import GenerationResult
from tests.cli.conftest import Run, assert_one_line_error, edgespec, own_cache
from tests.helpers.bundles import alphabet_table, make_lookup_bundle

__all__ = ["edgespec", "own_cache"]  # fixtures


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """The alphabet, with a draft that knows it."""
    return make_lookup_bundle(tmp_path / "bundle", draft_table=alphabet_table())


def prompts_that_fit(folder: Path) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"category": kind, "turns": [text]}) + "\n" for kind, text in (("one", "abc"), ("two", "xy"))))
    return path


def test_our_own_questions_are_of_several_kinds() -> None:
    assert len({question.category for question in read_prompts()}) >= 6
    assert len(read_prompts(OWN, 3)) == 3


@pytest.mark.parametrize("line", ["nonsense", "[]", '{"category": "x"}', '{"turns": []}', '{"turns": [1]}', '{"turns": [" "]}'])
def test_a_bad_line_is_named_by_its_number(line: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"category": "a", "turns": ["b"]}\n\n' + line + "\n")
    with pytest.raises(UsageError, match="line 3"):
        read_prompts(path)


def test_arms_are_named_by_drafter_and_length() -> None:
    arms = arms_of(["auto", "ngram:3"])
    assert list(arms) == [BASE, PLAIN, "auto", "ngram:3"]
    assert arms["ngram:3"] == {"drafter": "ngram", "draft_length": 3}
    with pytest.raises(UsageError, match="ngram:x"):
        arms_of(["ngram:x"])


def test_every_arm_answers_every_question_and_counts_add_up(bundle: Path) -> None:
    questions = [Question("one", "abc"), Question("two", "xyz"), Question("two", "m")]
    runs: list[int] = []
    arms = arms_of(["draft:3"])
    with package.load(bundle, threads=1) as engine:
        measured = measure(engine, questions, arms, repetitions=2, max_new_tokens=13, on_run=runs.append)
    assert len(runs) == len(arms) * (2 * 3 + 1)
    for answers in measured.answers.values():
        assert [answer.new_tokens for answer in answers] == [13, 13, 13]
        assert all(answer.equal for answer in answers)
    # The draft knows the table, so three drafted tokens and one of the target come out of every pass.
    assert measured.answers["draft:3"][0].tokens_per_pass == 4
    assert measured.answers[PLAIN][0].tokens_per_pass == 1
    assert measured.acceptance_by_position("draft:3") == {1: 1, 2: 1, 3: 1}
    assert measured.acceptance_by_position(PLAIN) == {}
    assert measured.speedup(BASE) == pytest.approx(1)
    assert measured.categories == ["one", "two"]


def test_a_difference_in_any_repetition_counts(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with package.load(bundle, threads=1) as engine:
        generate, runs = engine.generate, 0

        def other_text_once(text: str, **options: Any) -> GenerationResult:
            nonlocal runs
            runs += "draft" in options["drafter"]
            result = generate(text, **options)
            return dataclasses.replace(result, token_ids=result.token_ids[:-1]) if runs == 1 and "draft" in options["drafter"] else result

        monkeypatch.setattr(engine, "generate", other_text_once)
        measured = measure(engine, [Question("one", "abc")], arms_of(["draft:3"]), repetitions=3, max_new_tokens=8)
    assert [measured.answers[arm][0].equal for arm in (PLAIN, "draft:3")] == [True, False]
    assert not measured.texts_equal


def test_a_question_that_does_not_fit_is_left_out_and_said(bundle: Path) -> None:
    with package.load(bundle, threads=1) as engine:
        measured = measure(engine, [Question("a", "a" * 500), Question("a", "b")], arms_of([]), repetitions=1, max_new_tokens=4)
    assert [question.text for question in measured.questions] == ["b"]
    assert "500" in measured.skipped[0]


def test_ctrl_c_keeps_what_is_complete(bundle: Path) -> None:
    runs = 0

    def stop_in_the_third_question(_: int) -> None:
        nonlocal runs
        runs += 1
        if runs == 7:  # two arms: four runs of the first question, two of them to warm up, and two of the second
            raise KeyboardInterrupt

    with package.load(bundle, threads=1) as engine:
        questions = [Question("a", text) for text in "bcd"]
        measured = measure(engine, questions, arms_of([]), repetitions=1, max_new_tokens=4, on_run=stop_in_the_third_question)
    assert [question.text for question in measured.questions] == ["b", "c"]
    assert {len(answers) for answers in measured.answers.values()} == {2}
    assert "interrupted" in measured.skipped[0]


def test_the_command_prints_json_and_writes_a_report(edgespec: Run, bundle: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    page = tmp_path / "report.html"
    options = ("--repetitions", "1", "--max-new-tokens", "8", "--drafter", "draft:2", "--threads", "1", "--json", "--html", page)
    done = edgespec("bench", bundle, "--prompts", prompts_that_fit(tmp_path), *options)
    assert done.code == 0, done.err
    data = json.loads(done.out)
    assert set(data["answers"]) == {BASE, PLAIN, "draft:2"}
    assert all(answer["equal"] for answers in data["answers"].values() for answer in answers)
    text = page.read_text()
    assert text.count("<svg") == 4
    for part in ("Speed by kind of question", "Acceptance by position", "Cost of a pass by width", "Memory over time", "pages of files"):
        assert part in text
    assert '<span class="origin" title="draft"' in text
    assert not any(loader in text for loader in ("<script", "<link", "<img", "src=", "@import"))  # self-contained


def test_bad_input_is_one_line(edgespec: Run, bundle: Path, tmp_path: Path) -> None:
    assert_one_line_error(edgespec("bench", bundle, "--drafter", "medusa"), "medusa", "ngram")
    assert_one_line_error(edgespec("bench", bundle, "--prompts", tmp_path / "none.jsonl"), "none.jsonl")
    assert_one_line_error(edgespec("bench", tmp_path / "nothing"), "nothing")


def test_a_report_that_could_not_be_made_is_refused_before_any_work(
    edgespec: Run, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("edgespec.cli.bench.open_engine", lambda *_: pytest.fail("work has begun"))
    assert_one_line_error(edgespec("bench", bundle, "--html", tmp_path / "no" / "such.html"), "no such folder")
    assert_one_line_error(edgespec("bench", bundle, "--html", tmp_path), "is a folder")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert_one_line_error(edgespec("bench", bundle, "--html", tmp_path / "report.html"), "edgespec[bench]")


def test_a_full_disk_costs_the_report_only(edgespec: Run, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    page = tmp_path / "report.html"
    page.write_text("an older one")

    @contextlib.contextmanager
    def full(path: Path) -> Iterator[io.BytesIO]:
        yield io.BytesIO()
        raise OSError(errno.ENOSPC, "No space left on device", path)

    monkeypatch.setattr("edgespec.bench.report.whole", full)
    options = ("--repetitions", "1", "--max-new-tokens", "8", "--drafter", "draft:2", "--threads", "1", "--html", page)
    done = edgespec("bench", bundle, "--prompts", prompts_that_fit(tmp_path), *options)
    assert done.code == 2
    assert "draft:2" in done.out, "the figures are shown"
    assert "report.html: cannot be written: No space left on device; free some space" in done.err
    assert page.read_text() == "an older one"


def test_pieces_know_who_drafted_them(tmp_path: Path) -> None:
    """The draft knows the alphabet; from its second round on, n-grams know it, too."""
    with package.load(make_lookup_bundle(tmp_path / "b", draft_table=alphabet_table()), threads=1) as engine:
        for drafter, length in (("draft", 3), ("ngram,draft", 3), ("none", "auto")):
            stream = engine.stream("abc", max_new_tokens=60, drafter=drafter, draft_length=length, exactness="fast")
            sample = answer_with_origins(stream)
            assert "".join(piece.text for piece in sample) == engine.generate("abc", max_new_tokens=60, drafter="none").text
            counts = collections.Counter(piece.name for piece in sample)
            accepted = {name: found.total() for name, found in stream.stats.accepted_by_drafter.items() if found}
            assert counts == {**accepted, TARGET: stream.stats.own_tokens}
            if drafter == "ngram,draft":
                assert accepted["ngram"]
                assert accepted["draft"]


def test_the_geometric_mean() -> None:
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1)
    assert geometric_mean([]) == 0
