"""What the command line does where the exporter's libraries are missing: on the device."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from edgespec.cli.export import is_installed
from tests.cli.conftest import Run, assert_one_line_error


@pytest.mark.parametrize("words", [["export", "model", "-o"], ["quickstart", "-o"], ["distill", "model", "-o"]])
def test_missing_extras_say_what_to_install(edgespec: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str]) -> None:
    find_spec = importlib.util.find_spec

    def without_torch(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name in ("torch", "gguf") else find_spec(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without_torch)
    outcome = edgespec(*words, tmp_path / "b")
    assert_one_line_error(outcome, "torch", "gguf not installed", "pip install 'edgespec[export]'")
    assert not (tmp_path / "b").exists()
    assert not (tmp_path / "cache").exists()


def test_a_namespace_alone_is_not_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_optimum(name: str, package: str | None = None) -> ModuleSpec | None:
        assert package is None
        if name == "optimum.exporters":
            raise ModuleNotFoundError(name)
        return ModuleSpec(name, None)

    monkeypatch.setattr(importlib.util, "find_spec", without_optimum)
    assert is_installed("torch")
    assert not is_installed("optimum")
