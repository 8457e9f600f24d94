"""The quickstart: the comparison's arithmetic on a look-up target, and the flow with the exporter's part played by a stand-in."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgespec.bench.measure import BASE, PLAIN, Answer, Measured, measure
from edgespec.bench.prompts import Question
from edgespec.cli import quickstart
from edgespec.cli.compare import arms, comparison_table, verdict
from edgespec.errors import ExportError
from edgespec.manifest import MANIFEST_NAME
from edgespec.runtime import Engine, load
from edgespec.staging import check_output, staged
from tests.cli.conftest import Run, assert_one_line_error
from tests.helpers.bundles import alphabet_table, make_lookup_bundle

ARMS = arms("draft", "auto")
QUESTIONS = [Question("", "a"), Question("", "b")]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_lookup_bundle(tmp_path_factory.mktemp("quickstart") / "bundle", draft_table=alphabet_table())


@pytest.fixture
def engine(bundle: Path) -> Iterator[Engine]:
    with load(bundle) as engine:
        yield engine


def test_every_arm_runs_as_often_as_the_others_and_takes_turns(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[tuple[str, str]] = []
    generate = engine.generate

    def spy(prompt: Any, **options: Any) -> Any:
        order.append((options["drafter"], options["exactness"]))
        return generate(prompt, **options)

    monkeypatch.setattr(engine, "generate", spy)
    ticks: list[int] = []
    measure(engine, QUESTIONS, ARMS, repetitions=2, max_new_tokens=5, on_run=ticks.append)
    turn = [(options["drafter"], options["exactness"]) for options in ARMS.values()]
    assert order == turn * (len(QUESTIONS) * 2 + 1)
    assert len(ticks) == len(order)


def test_texts_are_equal_and_passes_are_saved(engine: Engine) -> None:
    measured = measure(engine, QUESTIONS, ARMS, repetitions=1, max_new_tokens=20)
    assert measured.texts_equal
    for number in range(len(QUESTIONS)):
        assert measured.answers[PLAIN][number].tokens_per_pass == 1.0
        assert measured.answers["draft"][number].new_tokens == 20
    text = comparison_table(measured)
    assert text.count("yes") == 4
    assert "NO" not in text
    json.dumps(quickstart.summary(measured), allow_nan=False)


def answer(speed: float, equal: bool = True, off: str | None = None) -> Answer:
    return Answer(speed, 0.1, 5, 10, 4, 2, 1.5, equal, off)


def measured(**arms: list[Answer]) -> Measured:
    """Arms by name, where ``base`` and ``plain`` stand for the two kinds of plain decoding."""
    names = {"base": BASE, "plain": PLAIN}
    count = len(arms["base"])
    return Measured([Question("", str(number)) for number in range(count)], {names.get(arm, arm): arms[arm] for arm in arms}, [])


def test_the_base_of_every_ratio_is_the_fastest_plain_decoding() -> None:
    """Exact plain decoding is slower here, and a draft that only makes up for that is no gain."""
    base = [answer(100, equal=False), answer(100)]
    found = measured(base=base, plain=[answer(80)] * 2, draft=[answer(100)] * 2, auto=[answer(200), answer(50)])
    assert found.ratio(PLAIN, 0) == 0.8
    assert found.speedup("auto") == pytest.approx(1.0)
    assert "no gain on this machine (1.00x" in verdict(found, "draft")
    faster = measured(base=[answer(100)], auto=[answer(200)])
    assert verdict(faster, "auto") == "auto: 2.00x the speed of plain decoding, 1.50 tokens per pass"
    assert found.texts_equal, "fast plain decoding may differ, that is why it is called fast"


def test_a_gain_without_the_drafters_is_not_credited_to_them() -> None:
    off = answer(150, off="draft: does not pay")
    found = measured(base=[answer(100)] * 2, plain=[answer(90)] * 2, draft=[off, answer(150)], auto=[answer(100)] * 2)
    assert verdict(found, "draft").endswith("its drafters did not pay and were off on 1 of 2 prompts")
    assert "off" not in verdict(found, "auto")


def test_a_text_that_differs_is_shouted() -> None:
    found = measured(base=[answer(1)], plain=[answer(1)], draft=[answer(1, equal=False)], auto=[answer(1)])
    assert not found.texts_equal
    assert "NO" in comparison_table(found)


def test_an_arm_without_speed_gives_zero_and_no_error() -> None:
    assert measured(base=[answer(0)], auto=[answer(0)]).speedup("auto") == 0.0


@pytest.fixture
def exporter(bundle: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """A stand-in for the export that copies the look-up bundle, whose draft plays the head; the list has what was asked for."""
    pytest.importorskip("torch")
    asked: list[Any] = []

    def export_bundle(config: Any) -> None:
        check_output(config.output, config.force)
        with staged(config.output, config.force) as folder:
            shutil.copytree(bundle, folder, dirs_exist_ok=True)
        asked.append(config)

    monkeypatch.setattr("edgespec.export.export_bundle", export_bundle)
    monkeypatch.setattr(quickstart, "SPECULATIVE", ("draft", "auto"))
    monkeypatch.setattr(quickstart, "NEEDED_BYTES", 0)
    monkeypatch.setattr(quickstart, "REPETITIONS", 1)
    monkeypatch.setattr(quickstart, "fetch_gguf", lambda: tmp_path / "model.gguf")
    return asked


def test_a_second_run_takes_the_place_of_the_first(edgespec: Run, exporter: list[Any], cache: Path) -> None:
    kept = cache / "quickstart-bundle"
    kept.mkdir(parents=True)
    (kept / "old").touch()
    (kept / MANIFEST_NAME).touch()
    data = json.loads(edgespec("quickstart", "--json").out)
    assert [config.eagle for config in exporter] == [str(quickstart.HEAD)]
    assert data["bundle"] == str(kept)
    assert not (kept / "old").exists()
    assert data["texts_equal"] is True
    assert {"speedup", "tokens_per_pass", "speedups", "questions", "answers", "machine", "onnxruntime", "draft"} <= set(data)
    assert [path for path in cache.iterdir() if path.name.startswith("quickstart-")] == [kept]


def test_the_table_for_a_person(edgespec: Run, exporter: list[Any], tmp_path: Path) -> None:
    outcome = edgespec("quickstart", "-o", tmp_path / "kept", "--threads", 1)
    assert outcome.code == 0
    assert (tmp_path / "kept" / MANIFEST_NAME).is_file()
    assert len(exporter) == 1
    assert "tokens/pass" in outcome.out
    assert outcome.out.count("yes") == 2 * len(quickstart.PROMPTS)
    assert f"edgespec run {tmp_path / 'kept'}" in outcome.out


def test_nothing_stays_of_an_export_that_fails(edgespec: Run, exporter: list[Any], monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    def fail(config: Any) -> None:
        with staged(config.output, config.force):
            raise ExportError(f"{config.output}: parity missed")

    monkeypatch.setattr("edgespec.export.export_bundle", fail)
    assert_one_line_error(edgespec("quickstart"), "parity missed")
    assert list(cache.iterdir()) == []
    assert exporter == []


def test_a_full_disk_is_noticed_first(edgespec: Run, exporter: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quickstart, "NEEDED_BYTES", 10**18)
    assert_one_line_error(edgespec("quickstart"), "needed; free some space")
    assert exporter == []


def test_a_folder_that_exists_is_left_alone(edgespec: Run, exporter: list[Any], tmp_path: Path) -> None:
    assert_one_line_error(edgespec("quickstart", "-o", tmp_path), "exists already")
    assert exporter == []
