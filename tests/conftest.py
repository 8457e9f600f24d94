"""Options of the whole suite."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is.
settings.register_profile("edgespec", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("edgespec")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--packages",
        choices=("default", "with", "without", "both"),
        default="default",
        help="run tests/runtime with the packages onnxruntime and tokenizers, without, or both; default: with, and some files both ways",
    )


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, which is not there yet, so that no measurement of another run decides it."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("EDGESPEC_CACHE", str(folder))
    return folder
