"""ONNX Runtime: its Python package where there is one, else its C library through ctypes.

Phones have no wheel of onnxruntime, but they have its library: the one in the Android archive, or a system's package. So
there are two backends behind one seam, :mod:`edgespec.runtime.ort.api`, which is the part of the package's own interface that
the runtime uses. The package itself is one backend, :mod:`edgespec.runtime.ort.capi` the other. Results are equal bit for bit.

    EDGESPEC_ORT_LIB=/path/to/libonnxruntime.so     use this library, even if the package is installed
"""

from __future__ import annotations

import os

from edgespec.errors import RuntimeFailure
from edgespec.runtime.ort.api import OnnxRuntime

LIBRARY_VARIABLE = "EDGESPEC_ORT_LIB"


def import_onnxruntime() -> OnnxRuntime:
    """The backend, loaded when it is first needed and with its telemetry off unless the user asked for it.

    Raises:
        RuntimeFailure: there is neither the package nor the library, or the library is none that can be used.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        from edgespec.runtime.ort.library import open_library

        return open_library(named)
    try:
        import onnxruntime
    except ImportError as error:  # also where it is installed for another system
        from edgespec.runtime.ort.library import find_library, open_library

        path = find_library()
        if path is None:
            raise RuntimeFailure(
                f"no ONNX Runtime: the package cannot be imported ({error}) and there is no library of it; "
                f"pip install onnxruntime, or name the library in {LIBRARY_VARIABLE}"
            ) from error
        return open_library(path)
    return onnxruntime  # type: ignore[no-any-return]
