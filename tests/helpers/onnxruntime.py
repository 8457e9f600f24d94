"""ONNX Runtime's own C library, as the installed wheel holds it, or another one that EDGESPEC_TEST_LIBRARY names."""

from __future__ import annotations

import os
from pathlib import Path

import onnxruntime
import pytest

from edgespec.runtime.models.kv import LEAST_ONNXRUNTIME

needs_quantised_kv = pytest.mark.skipif(
    tuple(map(int, onnxruntime.__version__.split(".")[:2])) < LEAST_ONNXRUNTIME, reason="this ONNX Runtime has no quantised KV caches"
)


def wheel_library() -> Path:
    """The library inside the installed package, for the C backend; the test is skipped where the wheel has none."""
    named = os.environ.get("EDGESPEC_TEST_LIBRARY")
    if named:
        return Path(named)
    folder = Path(onnxruntime.__file__).parent / "capi"
    patterns = ("libonnxruntime.so*", "libonnxruntime*.dylib", "onnxruntime.dll")
    found = [path for pattern in patterns for path in sorted(folder.glob(pattern))]
    if not found:
        pytest.skip(f"{folder} holds no library with the C API")
    return found[0]
