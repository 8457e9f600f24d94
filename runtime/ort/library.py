"""Finding and opening ONNX Runtime's C library."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import re

from edgespec.errors import RuntimeFailure
from edgespec.runtime.ort.capi import Library
from edgespec.runtime.ort.table import API_VERSION, ASSIGNMENT_VERSION, Api, OrtApiBase

OLDEST = (1, 20)  # has attention_bias of GroupQueryAttention, which every bundle needs
NAMES = ("libonnxruntime.so", "libonnxruntime.dylib", "onnxruntime.dll")


def find_library() -> str | None:
    """Name or path of a library that can be opened: one that an app brought along (Android), or one of the system."""
    for name in (*NAMES, ctypes.util.find_library("onnxruntime")):
        if name:
            try:
                ctypes.CDLL(name)
            except OSError:
                continue
            return name
    return None


@functools.lru_cache(maxsize=8)
def open_library(path: str) -> Library:
    """Open the library at ``path``, or of this name where the loader finds it.

    Raises:
        RuntimeFailure: it cannot be opened, is not ONNX Runtime's, or is too old.
    """
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise RuntimeFailure(f"{path}: cannot be opened as a library: {error}") from error
    try:
        get_base = library.OrtGetApiBase
    except AttributeError as error:
        raise RuntimeFailure(f"{path}: not ONNX Runtime's library, it has no OrtGetApiBase") from error
    get_base.restype = ctypes.POINTER(OrtApiBase)
    base = get_base().contents
    version = base.GetVersionString().decode("ascii", "replace")
    found = re.match(r"(\d+)\.(\d+)", version)
    numbers = tuple(map(int, found.groups())) if found else ()
    if numbers < OLDEST:
        raise RuntimeFailure(f"{path}: is ONNX Runtime {version}; edgespec needs {'.'.join(map(str, OLDEST))} or newer")
    table = base.GetApi(API_VERSION)
    if not table:
        raise RuntimeFailure(f"{path}: ONNX Runtime {version} no longer has version {API_VERSION} of its C API; upgrade edgespec")
    return Library(library, Api(table, tells_assignment=numbers >= (1, ASSIGNMENT_VERSION)), version)
