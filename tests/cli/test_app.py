"""Errors become one line and an exit code, whatever they are; help is quick and light."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from edgespec.cli.app import cli, guarded
from edgespec.errors import BundleError, CapacityError, EdgespecError, UsageError
from tests.cli.conftest import Run, assert_one_line_error

COMMANDS = {
    "compile",
    "distill",
    "doctor",
    "export",
    "run",
    "chat",
    "demo",
    "inspect",
    "plan",
    "verify",
    "bench",
    "push",
    "tune",
    "quickstart",
}


def raising(error: BaseException) -> Callable[[], int]:
    def action() -> int:
        raise error

    return action


@pytest.mark.parametrize("kind", [EdgespecError, UsageError, BundleError, CapacityError])
def test_our_errors_are_one_line_and_code_2(kind: type[EdgespecError], capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(raising(kind("first\nsecond"))) == 2
    assert capsys.readouterr().err == "edgespec: error: first second\n"


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/x/model.bin"), 2, "error: /x/model.bin: No space left on device"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 2, "error: /x: Permission denied"),
        (MemoryError(), 2, "error: out of memory"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (click.Abort(), 130, "interrupted"),
        (click.UsageError("no such thing"), 2, "error: no such thing (see: edgespec --help)"),
        (ZeroDivisionError("division by zero"), 70, "error: unexpected ZeroDivisionError: division by zero; this is a bug"),
    ],
)
def test_other_errors(error: BaseException, code: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(raising(error)) == code
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert text in err


def test_the_traceback_is_there_when_asked_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("EDGESPEC_TRACEBACK", "1")
    assert guarded(raising(BundleError("damaged"))) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("edgespec: error: damaged\n")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["run"], "Missing argument 'BUNDLE'"),
        (["inspect", "--colour", "x"], "No such option"),
        (["export", "model"], "Missing option '-o'"),
        (["export", "model", "-o", "x", "--weights", "int3"], "'int3' is not one of"),
        (["export", "model", "-o", "x", "--npu-widths", "1,five"], "'1,five' are not numbers between commas"),
        (["run", "x", "hi", "--profile", "npu;"], "profile: 'npu;' is not a name"),
        (["run", "x", "hi", "--max-new-tokens", "0"], "--max-new-tokens"),
        (["run", "x", "hi", "--draft-length", "0"], "neither auto nor a number"),
        (["run", "x", "hi", "--draft-length", "many"], "neither auto nor a number"),
        (["run", "x", "hi", "--memory-budget", "lots"], "memory budget 'lots'"),
        (["run", "x", "hi", "--memory-budget", "0"], "memory budget '0'"),
        (["run", "x", "hi", "--exactness", "roughly"], "--exactness"),
        (["run", "x", "hi", "--threads", "0"], "threads: 0 is not a number from 1"),
        (["run", "x", "hi", "--threads", "target=2,draft="], "'draft=' is not a name"),
        (["run", "x", "hi", "--providers", "tpu"], "providers: tpu is not installed"),
        (["run", "x", "hi", "--provider-option", "qnn=burst"], "'qnn=burst' is not PROVIDER.KEY=VALUE"),
        (["run", "x", "hi", "--provider-option", "qnn.htp_arch=73"], "options for qnn, which no model was put on"),
        (["run", "x", "hi", "--temperature", "0.5"], "no effect without --sample"),
        (["chat", "x", "--seed", "1"], "no effect without --sample"),
    ],
)
def test_wrong_words_are_one_line(edgespec: Run, words: list[str], part: str) -> None:
    assert_one_line_error(edgespec(*words), part)


@pytest.mark.parametrize("command", ["inspect", "verify", "run", "chat"])
def test_a_missing_bundle_is_one_line(edgespec: Run, command: str, tmp_path: Path) -> None:
    words = [command, tmp_path / "nothing", *(["hi"] if command == "run" else [])]
    assert_one_line_error(edgespec(*words), "nothing: no such bundle folder", "edgespec export")


def test_help_names_every_command(edgespec: Run) -> None:
    outcome = edgespec("--help")
    assert outcome.code == 0
    assert set(cli.commands) == COMMANDS
    for command in COMMANDS:
        assert f"  {command} " in outcome.out
        assert edgespec(command, "--help").code == 0


def test_the_version_is_the_packages(edgespec: Run) -> None:
    import edgespec as package

    assert edgespec("--version").out == f"edgespec {package.__version__}\n"


def test_help_is_quick_and_loads_nothing_heavy() -> None:
    """In a process of its own; the time is the best of three, since the machine may be busy with other things."""
    code = (
        "import sys\nfrom edgespec.cli import main\n"
        "try:\n    main(['export', '--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'numpy', 'onnxruntime', 'torch', 'transformers', 'onnx', 'tokenizers', 'jinja2', 'optimum'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)\n"
    )
    best = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        best = min(best, time.perf_counter() - started)
        assert result.returncode == 0, result.stderr
    assert best < 1.0


def test_python_m_edgespec_is_the_same_command(tmp_path: Path) -> None:
    result = subprocess.run([sys.executable, "-m", "edgespec", "inspect", str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert result.stderr == f"edgespec: error: {tmp_path}: not a bundle, it has no edgespec.json\n"


def test_a_reader_that_goes_away_is_no_error() -> None:
    """As in ``edgespec run ... | head -1``: no traceback, and none from Python's flush at exit either."""
    code = "from edgespec.cli import main; main(['--help'])"
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.run([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert process.stderr == ""
    assert process.returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_output_onto_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        code = "from edgespec.cli import main; main(['--help'])"
        process = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert process.returncode == 2
    assert process.stderr == "edgespec: error: No space left on device\n"
