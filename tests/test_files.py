"""Files and folders take their places whole, and what was there stays when that fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgespec.files import take_place, whole


@pytest.mark.parametrize("synced", [False, True])
def test_a_file_is_there_when_it_is_whole(tmp_path: Path, synced: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with whole(path, synced=synced) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_is_not_finished_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(TypeError), whole(path) as file:
        file.writelines([b"new", None])  # type: ignore[list-item]
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
@pytest.mark.parametrize(("private", "mode"), [(True, 0o600), (False, 0o640)])
def test_who_can_read_it(tmp_path: Path, private: bool, mode: int) -> None:
    path, before = tmp_path / "file", os.umask(0o027)
    try:
        with whole(path, private=private) as file:
            file.write(b"new")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == mode


def folder_with(path: Path, name: str) -> Path:
    path.mkdir()
    (path / name).touch()
    return path


@pytest.mark.parametrize("killed_before", [False, True])
def test_a_folder_takes_the_place_of_another(tmp_path: Path, killed_before: bool) -> None:
    place, fresh = folder_with(tmp_path / "place", "old"), folder_with(tmp_path / "fresh", "new")
    if killed_before:
        folder_with(tmp_path / ".place.old", "older")
    take_place(fresh, place)
    assert [path.name for path in place.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [place]


def test_the_folder_that_was_there_comes_back(tmp_path: Path) -> None:
    place = folder_with(tmp_path / "place", "old")
    with pytest.raises(FileNotFoundError):
        take_place(tmp_path / "missing", place)
    assert [path.name for path in place.iterdir()] == ["old"]
    assert list(tmp_path.iterdir()) == [place]
