"""The benchmark of all methods: which processes there are, resuming, and the tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.methods.__main__ import main
from benchmarks.methods.arms import BASE, PLAIN, bundle_with, groups_of
from benchmarks.methods.results import ResultFile, balanced, key_of
from benchmarks.methods.table import tables
from edgespec.bench.prompts import Question
from edgespec.bundle import open_bundle
from edgespec.errors import UsageError
from tests.cli.conftest import own_cache
from tests.helpers.bundles import alphabet_table, make_lookup_bundle

__all__ = ["own_cache"]  # fixture

ABOUT = {
    "bundle": "abc",
    "machine": "m",
    "onnxruntime": "1",
    "threads": 2,
    "new_tokens": 5,
    "methods": [BASE, PLAIN, "draft", "draft, fast"],
}
QUESTIONS = [Question("qa", "one"), Question("coding", "two"), Question("stem", "three")]


def told(ids: list[int], seconds: float, passes: int, drafted: int = 0, accepted: int = 0) -> dict[str, Any]:
    positions = {"drafted_by_position": {"1": drafted} if drafted else {}, "accepted_by_position": {"1": accepted}}
    return {"ids": ids, "decode_s": seconds, "target_passes": passes, "prefill_s": 1.0, **positions}


def answers(*, changed: bool = False) -> dict[str, dict[str, Any]]:
    ids = [1, 2, 3, 4, 5]
    return {
        BASE: told(ids, 1.0, 4),
        PLAIN: told(ids, 2.0, 4),
        "draft": told(ids, 0.5, 2, 4, 2),
        "draft, fast": told([1, 2, 3, 4, 9] if changed else ids, 0.25, 2, 4, 2),
    }


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return make_lookup_bundle(tmp_path / "bundle", draft_table=alphabet_table())


def test_methods_that_need_no_draft_run_without_one(bundle: Path, tmp_path: Path) -> None:
    groups = groups_of(open_bundle(bundle))
    assert groups.keys() == {(), ("draft",)}
    assert {BASE, PLAIN, "ngram", "ngram, fast", "lookahead"} <= groups[()].keys()
    assert {"draft", "tree", "tree, fast", "auto"} <= groups["draft",].keys()
    assert bundle_with(("draft",), bundle, tmp_path) == bundle, "which has all that these need, and no more"
    alone = open_bundle(bundle_with((), bundle, tmp_path))
    assert alone.models.keys() == {"target"}
    assert [*groups_of(alone)] == [()]
    assert [*groups_of(open_bundle(bundle), ["draft", "ngram,draft"], ["exact"])["draft",]] == ["draft", "ngram,draft"]
    with pytest.raises(UsageError, match="eagle"):
        groups_of(open_bundle(bundle), ["eagle"])


def test_answers_are_kept_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    ResultFile(path, ABOUT).add(QUESTIONS[0], answers())
    with path.open("a") as file:
        file.write('{"question": "cut o')  # killed while it wrote
    again = ResultFile(path, ABOUT)
    assert [question.text for question in again.missing(QUESTIONS)] == ["two", "three"]
    again.add(QUESTIONS[1], answers())
    assert [line["question"] for line in ResultFile(path, ABOUT).lines] == [key_of(question) for question in QUESTIONS[:2]]
    assert "one" not in path.read_text()
    with pytest.raises(UsageError, match="another measurement, threads 2 in place of 4"):
        ResultFile(path, {**ABOUT, "threads": 4})
    path.write_text("nonsense\n{}\n")
    with pytest.raises(UsageError, match="no JSON"):
        ResultFile(path, ABOUT)


def test_the_tables(tmp_path: Path) -> None:
    kept = ResultFile(tmp_path / "answers.jsonl", ABOUT)
    for question in QUESTIONS:
        kept.add(question, answers(changed=question.category == "stem"))
    speed, middle, per_pass, acceptance, equal, changed = tables(kept.results(), ABOUT["methods"]).split(":\n\n")[1:]
    assert "|  | all (3) | multi-turn (2) | qa (1) |" in speed
    assert "| plain | 0.50 | 0.50 | 0.50 |" in speed
    assert "| draft, fast | 4.00 | 4.00 | 4.00 |" in speed
    assert "| draft, fast | 4.00 | 4.00 | 4.00 |" in middle
    assert "| draft | 2.00 | 2.00 | 2.00 |" in per_pass
    assert "| draft | 0.50 | 0.50 | 0.50 |" in acceptance
    assert "| draft | 3 of 3 | 2 of 2 | 1 of 1 |" in equal
    assert "| draft, fast | 33% | 50% | 0% |" in changed


def test_the_command_goes_on_where_it_was_stopped(bundle: Path, tmp_path: Path) -> None:
    questions, output = tmp_path / "questions.jsonl", tmp_path / "answers.jsonl"
    questions.write_text("".join(json.dumps({"category": "qa", "turns": [text]}) + "\n" for text in ("abc", "xyz", "a" * 500)))
    command = [str(bundle), str(questions), "--output", str(output), "--new-tokens", "9", "--threads", "1"]
    command += ["--drafter", "draft", "--exactness", "exact"]
    first = CliRunner().invoke(main, [*command, "--limit", "1"])
    assert first.exit_code == 0, first.output
    assert "1 questions" in first.output
    kept = output.read_text()
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    assert output.read_text().startswith(kept)
    assert "PARTIAL: 1 of 3" in done.output, "the one that is too long"
    assert "| draft | 2 of 2 | 2 of 2 |" in done.output
    assert CliRunner().invoke(main, [*command, "--table-only"]).output.endswith(done.output[done.output.index("Speed") :])
    refused = CliRunner().invoke(main, [*command[:-2], "--exactness", "fast"])
    assert refused.exit_code == 1
    assert "another measurement" in refused.output


def test_so_many_of_each_kind_in_turns() -> None:
    kinds = ["qa"] * 4 + ["math", "writing"] + ["rag"]
    questions = [Question(kind, str(number)) for number, kind in enumerate(kinds)]
    assert [question.text for question in balanced(questions, 2)] == ["0", "4", "6", "2", "5"], "math and writing are of one kind"
    assert len(balanced(questions, 9)) == 7
