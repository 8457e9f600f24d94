"""Running the command line inside the test's process, and bundles to run it on."""

from __future__ import annotations

import dataclasses
import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edgespec.cli import main


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a command left: its exit code and its two streams."""

    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("EDGESPEC_TRACEBACK", raising=False)
    return cache


@pytest.fixture
def edgespec(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """``edgespec("inspect", path)`` runs a command; ``stdin`` is what it reads, nothing by default."""

    def run(*words: object, stdin: bytes = b"") -> Outcome:
        capsys.readouterr()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        with pytest.raises(SystemExit) as exit_:
            main([str(word) for word in words])
        out, err = capsys.readouterr()
        code = exit_.value.code
        return Outcome(code if isinstance(code, int) else 0, out, err)

    return run


def assert_one_line_error(outcome: Outcome, *parts: str) -> None:
    """Exit code 2, nothing on stdout, and on stderr one line that starts with our name and holds ``parts``."""
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    lines = outcome.err.splitlines()
    assert len(lines) == 1, outcome.err
    assert lines[0].startswith("edgespec: error: ")
    for part in parts:
        assert part in lines[0]
