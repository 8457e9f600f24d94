"""Exports that several tests look at, made once per session."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgespec.export import ExportConfig, ExportReport, export_bundle
from tests.helpers.checkpoints import make_checkpoint
from tests.helpers.talking import make_talking_checkpoint


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama checkpoint with a tied head."""
    return make_checkpoint(tmp_path_factory.mktemp("checkpoints") / "llama", "llama", tie_word_embeddings=True)


@pytest.fixture(scope="session")
def pair(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> ExportReport:
    """That checkpoint in int8 with its own first layer as draft."""
    return export(llama, tmp_path_factory.mktemp("bundles") / "pair", draft="layers:1", weights="int8")


@pytest.fixture(scope="session")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that answers."""
    return make_talking_checkpoint(tmp_path_factory.mktemp("talking") / "checkpoint")


def export(target: Path, output: Path, **options: object) -> ExportReport:
    settings: dict[str, object] = {"weights": "fp32", "max_width": 8, "quiet": True, **options}
    return export_bundle(ExportConfig(target=str(target), output=output, **settings))  # type: ignore[arg-type]
