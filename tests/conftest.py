"""Options of the whole suite."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--packages",
        choices=("default", "with", "without", "both"),
        default="default",
        help="run tests/runtime with the packages onnxruntime and tokenizers, without, or both; default: with, and some files both ways",
    )
