"""edgespec: speculative decoding on your own device.

``edgespec.export`` turns a checkpoint and a draft into an ONNX bundle; ``edgespec.runtime`` generates text from it.
``edgespec.load(path)`` opens a bundle with the light runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "load"]

if TYPE_CHECKING:
    from edgespec.runtime import load


def __getattr__(name: str) -> Any:
    # The export half must be importable without loading onnxruntime, so `load` is looked up when it is used.
    if name == "load":
        from edgespec.runtime import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
