"""How many threads a pass has where a container limits processor time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgespec.runtime import cores


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(cores, "_siblings", str)


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content + "\n")


def test_groups_of_version_2(groups: Path) -> None:
    assert cores.default_threads() == 8, "no group is known"
    (groups / "membership").write_text("0::/slice/app\n")
    write(groups / "slice/app", cpu__max="max 100000")
    assert cores.default_threads() == 8
    write(groups / "slice", cpu__max="350000 100000")
    assert cores.default_threads() == 3, "a group further up limits what is in it"
    write(groups, cpu__max="50000 100000")
    assert cores.default_threads() == 1, "half a processor still takes a thread"


def test_groups_of_version_1(groups: Path) -> None:
    (groups / "membership").write_text("0::/\n5:memory:/other\n3:cpu,cpuacct:/slice/app\n")
    write(groups / "cpu/slice/app", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    assert cores.default_threads() == 8
    write(groups / "cpu", cpu__cfs_quota_us="400000", cpu__cfs_period_us="100000")
    assert cores.default_threads() == 4, "as a container sees its own group"
