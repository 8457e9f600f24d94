"""Bundles from a picker: copied whole and verified, or not at all."""

from __future__ import annotations

import functools
import os
import shutil
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from edgespec.bundle import check_hashes, open_bundle
from edgespec.demo import android
from edgespec.demo.importing import Cancelled, import_bundle, safe_name
from edgespec.demo.service import Service
from edgespec.errors import BundleError, CapacityError, UsageError
from edgespec.runtime.ort import LIBRARY_VARIABLE
from tests.demo.conftest import WAIT_S, Recorded
from tests.helpers.onnxruntime import wheel_library


def sources_of(folder: Path) -> dict[str, Any]:
    def opener(path: Path) -> BinaryIO:
        return path.open("rb")

    return {path.name: functools.partial(opener, path) for path in folder.iterdir()}


@pytest.fixture
def source(bundles: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundles / "first", tmp_path / "source"))


def nothing_is_left(target: Path) -> bool:
    return not target.exists() or list(target.iterdir()) == []


def test_a_copy_is_whole_and_says_how_far_it_is(source: Path, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    (source / "notes.txt").write_text("not of the bundle")
    path = import_bundle(sources_of(source), tmp_path / "to", "Mine", progress=lambda *event: told.append(event))
    manifest = open_bundle(path)
    check_hashes(path, manifest)
    assert path == tmp_path / "to" / "Mine"
    assert not (path / "notes.txt").exists()
    total = sum(entry.size for entry in manifest.files)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    assert (told[-1][1], {told_total for _, _, told_total in told}) == (total, {total})
    assert import_bundle(sources_of(source), tmp_path / "to", "Mine", progress=lambda *_: None) == path
    assert [item.name for item in (tmp_path / "to").iterdir()] == ["Mine"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "edgespec.json").unlink(), "not a bundle, it has no edgespec.json"),
        (lambda folder: (folder / "target.onnx").unlink(), "target.onnx is missing"),
        (lambda folder: (folder / "target.onnx").write_bytes((folder / "target.onnx").read_bytes()[:-1]), "fewer bytes"),
        (lambda folder: (folder / "target.onnx").write_bytes((folder / "target.onnx").read_bytes() + b"x"), "more bytes"),
        (lambda folder: (folder / "target.onnx").write_bytes((folder / "target.onnx").read_bytes()[:-1] + b"\0"), "sha256"),
        (lambda folder: (folder / "edgespec.json").write_text('{"format_version": 99}'), "newer"),
        (lambda folder: (folder / "edgespec.json").write_text("{}"), "format_version"),
    ],
)
def test_what_is_wrong_leaves_nothing_behind(source: Path, tmp_path: Path, change: Any, message: str) -> None:
    change(source)
    with pytest.raises(BundleError, match=message):
        import_bundle(sources_of(source), tmp_path / "to", "b", progress=lambda *_: None)
    assert nothing_is_left(tmp_path / "to")


def test_a_failed_import_keeps_the_bundle_that_was_there(source: Path, tmp_path: Path) -> None:
    path = import_bundle(sources_of(source), tmp_path / "to", "b", progress=lambda *_: None)
    (source / "target.onnx").write_bytes(b"")
    with pytest.raises(BundleError):
        import_bundle(sources_of(source), tmp_path / "to", "b", progress=lambda *_: None)
    check_hashes(path, open_bundle(path))


def test_too_little_storage_is_said_before_copying(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9 - 1000, 1000))  # noqa: ARG005
    with pytest.raises(CapacityError, match=r"Not enough storage.*free 6\d MB more"):
        import_bundle(sources_of(source), tmp_path / "to", "b", progress=lambda *_: pytest.fail("copied"))
    assert nothing_is_left(tmp_path / "to")


def test_it_can_be_stopped(source: Path, tmp_path: Path) -> None:
    told: list[int] = []
    with pytest.raises(Cancelled):
        import_bundle(sources_of(source), tmp_path / "to", "b", progress=lambda *_: told.append(1), stopped=lambda: bool(told))
    assert nothing_is_left(tmp_path / "to")


def test_names_stay_in_their_folder() -> None:
    assert safe_name("../a/b:c") == "_a_b_c"
    assert safe_name("My model 4.0") == "My model 4.0"
    assert len(safe_name("x" * 500)) == 80
    for name in ("", "..", " . "):
        with pytest.raises(UsageError):
            safe_name(name)


class Shell:
    """What the app's Java is to Python."""

    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded

    def onEvent(self, text: str) -> None:
        import json

        self._recorded(json.loads(text))


class Picked:
    """A picked folder: names and file descriptors."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        return sorted(path.name for path in self._folder.iterdir())

    def open(self, name: str) -> int:
        return os.open(self._folder / name, os.O_RDONLY)


def test_the_apps_way_from_an_empty_device_to_an_answer(
    source: Path, tmp_path: Path, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On ONNX Runtime's C library, as on a phone."""
    monkeypatch.setenv(LIBRARY_VARIABLE, str(wheel_library()))
    folders = [str(tmp_path / name) for name in ("files", "external", "cache")]
    service: Service = android.start(*folders, Shell(recorded))
    try:
        assert service.state()["bundle"] is None
        android.import_picked(service, Picked(source), "Phone")
        assert service.wait(WAIT_S)
        assert recorded.of("error") == []
        assert recorded.of("progress")
        assert service.state()["bundle"]["name"] == "Phone"
        service.receive('{"type": "send", "text": "hello"}')
        assert service.wait(WAIT_S)
        assert recorded.of("finished")[-1]["new_tokens"] > 1
        (source / "draft.onnx").write_bytes(b"")
        android.import_picked(service, Picked(source), "Damaged")
        assert service.wait(WAIT_S)
        assert "fewer bytes" in recorded.of("error")[-1]["text"]
        assert service.state()["bundle"]["name"] == "Phone"
    finally:
        service.close()
