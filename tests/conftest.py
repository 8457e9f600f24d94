"""Options of the whole suite."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--ort-backend",
        choices=("default", "python", "capi", "both"),
        default="default",
        help="backend of ONNX Runtime for tests/runtime: its package, its C library, or both; default: the package, some files on both",
    )
