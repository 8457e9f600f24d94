"""The user's cache, and calibrations in it: losing or damaging them costs a measurement and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgespec.cache import cache_folder, read_json, write_json
from edgespec.runtime import engine as engine_module
from edgespec.runtime import load


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
def measurements(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every self-test."""
    made: list[int] = []
    find = engine_module.find_equal_widths

    def counted(*arguments: object) -> object:
        made.append(1)
        return find(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(engine_module, "find_equal_widths", counted)
    return made


def test_measured_once_per_bundle_and_thread_count(attention_bundle: Path, cache: Path, measurements: list[int]) -> None:
    for threads, expected in ((1, 1), (1, 1), (2, 2), (1, 2)):
        with load(attention_bundle, threads=threads) as engine:
            assert engine.exactness.grade == "exact"
            assert engine.cost_curve.keys() == set(range(1, 9))
            assert engine.draft_cost.keys() == {"draft"}
        assert len(measurements) == expected
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: "",
        lambda _: "[]",
        lambda _: "\x00\xff",
        lambda data: json.dumps({**data, "target_ms": {}}),
        lambda data: json.dumps({**data, "target_ms": {"1": -2}}),
        lambda data: json.dumps({**data, "target_ms": {"one": 2}}),
        lambda data: json.dumps({**data, "exactness": {**data["exactness"], "widths": [4, 2]}}),
        lambda data: json.dumps({**data, "exactness": {**data["exactness"], "widths": []}}),
        lambda data: json.dumps({**data, "exactness": {**data["exactness"], "grade": "perfect"}}),
        lambda _: json.dumps({"exactness": 3}),
    ],
)
def test_a_damaged_calibration_is_measured_again(attention_bundle: Path, cache: Path, measurements: list[int], damage) -> None:  # type: ignore[no-untyped-def]
    with load(attention_bundle, threads=1) as engine:
        assert engine.exactness.grade == "exact"
    (file,) = cache.iterdir()
    file.write_text(damage(json.loads(file.read_text())))
    with load(attention_bundle, threads=1) as engine:
        assert engine.exactness.grade == "exact"
    assert len(measurements) == 2
    assert json.loads(file.read_text())["exactness"]["grade"] == "exact", "and written anew"
