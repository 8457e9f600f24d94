"""The user's cache, and calibrations in it: losing or damaging them costs a measurement and nothing else."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgespec.cache import cache_folder, read_json, write_json
from edgespec.runtime import engine as engine_module
from edgespec.runtime import load
from edgespec.runtime.tuning import cost
from edgespec.runtime.tuning.cost import Costs


def test_what_is_written_is_read(cache: Path) -> None:
    assert read_json("x.json") is None
    assert write_json("x.json", {"a": [1, 2]})
    assert read_json("x.json") == {"a": [1, 2]}
    assert [file.name for file in cache.iterdir()] == ["x.json"]


def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path / "file" / "below"))
    assert not write_json("x.json", {})
    assert read_json("x.json") is None


def test_where_the_folder_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("EDGESPEC_CACHE")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "edgespec"
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache_folder().parts[-3:] == ("Library", "Caches", "edgespec")


@pytest.fixture
def measurements(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often the self-test ran and costs were measured. The machine counts as quiet, whatever else runs here."""
    made = {"exactness": 0, "costs": 0}
    find, measure = engine_module.find_equal_widths, cost.measure

    def counted_find(*arguments: Any) -> Any:
        made["exactness"] += 1
        return find(*arguments)

    def counted_measure(*arguments: Any) -> Any:
        made["costs"] += 1
        return dataclasses.replace(measure(*arguments), quiet=made["costs"] != 10)

    monkeypatch.setattr(engine_module, "find_equal_widths", counted_find)
    monkeypatch.setattr(cost, "measure", counted_measure)
    return made


def look(bundle: Path, threads: int = 1) -> None:
    with load(bundle, threads=threads) as engine:
        assert engine.exactness.grade == "exact"
        assert engine.cost_curve.keys() == {1, 2, 3, 4, 5, 6, 8}
        assert engine.draft_cost.keys() == {"draft"}


def test_measured_once_per_bundle_and_thread_count(attention_bundle: Path, cache: Path, measurements: dict[str, int]) -> None:
    for threads, expected in ((1, 1), (1, 1), (2, 2), (1, 2)):
        look(attention_bundle, threads)
        assert measurements == {"exactness": expected, "costs": expected}
    assert len(list(cache.iterdir())) == 4


def test_costs_of_a_busy_machine_are_not_kept(attention_bundle: Path, measurements: dict[str, int]) -> None:
    measurements["costs"] = 9
    for expected in (10, 11, 11):
        look(attention_bundle)
        assert measurements == {"exactness": 1, "costs": expected}


def test_measuring_again_forgets_what_was_learnt(attention_bundle: Path, cache: Path) -> None:
    with load(attention_bundle, threads=1) as engine:
        engine.generate("hi", drafter="draft", max_new_tokens=30, ignore_eos=True)
        engine.keep_learnt()
        assert list(cache.glob("acceptance-*.json"))
        engine.remeasure()
    assert not list(cache.glob("acceptance-*.json"))


def test_a_context_of_few_tokens_can_be_measured(attention_bundle: Path) -> None:
    with load(attention_bundle, threads=1, context=2) as engine:
        assert set(engine.draft_cost) == {"draft"}
        assert engine.generate([5], max_new_tokens=2).stats.new_tokens == 2


def test_what_is_not_asked_for_is_not_measured(attention_bundle: Path, measurements: dict[str, int]) -> None:
    with load(attention_bundle, threads=1) as engine:
        engine.generate("hi", exactness="fast", drafter="draft", draft_length=2, max_new_tokens=4)
        assert measurements == {"exactness": 0, "costs": 0}
        engine.generate("hi", drafter="draft", draft_length=2, max_new_tokens=4)
        assert measurements == {"exactness": 1, "costs": 0}
        engine.generate("hi", max_new_tokens=4)
        assert measurements == {"exactness": 1, "costs": 1}


def test_known_costs_load_no_draft(attention_bundle: Path, measurements: dict[str, int]) -> None:
    look(attention_bundle)
    with load(attention_bundle, threads=1) as engine:
        engine.generate("hi", drafter="ngram", max_new_tokens=4)
        assert list(engine._models.loaded) == ["target"]
    assert measurements["costs"] == 1


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("exactness", lambda _: ""),
        ("exactness", lambda _: "[]"),
        ("exactness", lambda _: "\x00\xff"),
        ("exactness", lambda data: json.dumps({**data, "widths": [4, 2]})),
        ("exactness", lambda data: json.dumps({**data, "widths": []})),
        ("exactness", lambda data: json.dumps({**data, "grade": "perfect"})),
        ("costs", lambda _: "{}"),
        ("costs", lambda data: json.dumps({**data, "target_ms": {}})),
        ("costs", lambda data: json.dumps({**data, "target_ms": {"1": -2}})),
        ("costs", lambda data: json.dumps({**data, "target_ms": {"1": float("nan")}})),
        ("costs", lambda data: json.dumps({**data, "target_ms": {"one": 2}})),
        ("costs", lambda data: json.dumps({**data, "target_ms": 3})),
    ],
)
def test_a_damaged_entry_is_measured_again(
    attention_bundle: Path, cache: Path, measurements: dict[str, int], name: str, damage: Callable[[Any], str]
) -> None:
    look(attention_bundle)
    (file,) = cache.glob(f"{name}-*.json")
    sound = json.loads(file.read_text())
    file.write_text(damage(sound))
    look(attention_bundle)
    assert measurements == {"exactness": 1, "costs": 1, name: 2}
    assert json.loads(file.read_text()).keys() == sound.keys(), "and written anew"


def test_costs_between_and_beyond_the_measured_widths() -> None:
    costs = Costs({1: 4.0, 2: 5.0, 4: 9.0}, {}, True)
    assert [costs.of_width(width) for width in (1, 2, 3, 4, 8)] == [4, 5, 7, 9, 18]
    assert Costs({2: 5.0}, {}, True).of_width(1) == 5
