"""Every error that edgespec raises on purpose.

    EdgespecError                 bad input or a limit of this machine; the command line prints one line and exits 2
    ├── UsageError                options that contradict each other or lie outside their range
    ├── CheckpointError           a checkpoint that is missing, unreadable, incomplete or not a decoder
    │   └── UnsupportedModelError a decoder with a layer or option that cannot be exported; names it
    ├── ExportError               an export that failed on the way (parity missed, disk full)
    ├── BundleError               a bundle that is missing, damaged, edited, or newer than this version
    ├── RuntimeFailure            ONNX Runtime refused to load or to run a graph
    │   └── OutOfMemory           since the system gave it no memory for it
    └── CapacityError             a prompt, context or budget that does not fit

Messages say what is wrong, where, and what to do about it. An error of a library is wrapped once, with ``from``.
"""

from __future__ import annotations


class EdgespecError(Exception):
    """Base of the tree. ``str(error)`` is one line for a person."""


class UsageError(EdgespecError):
    """Options that contradict each other or lie outside their range."""


class CheckpointError(EdgespecError):
    """A checkpoint that is missing, unreadable, incomplete or not a decoder."""


class UnsupportedModelError(CheckpointError):
    """A decoder with a layer or an option that cannot be exported. The message names it."""


class ExportError(EdgespecError):
    """An export that failed on the way: parity missed, disk full, output folder in use."""


class BundleError(EdgespecError):
    """A bundle that is missing, damaged, edited, or written by a newer version."""


class RuntimeFailure(EdgespecError):
    """ONNX Runtime refused to load or to run a graph."""


class OutOfMemory(RuntimeFailure):
    """There was no memory for a session or a pass."""


class CapacityError(EdgespecError):
    """A prompt, a context or a memory budget that does not fit."""


NO_MEMORY = (OutOfMemory, MemoryError)
"""What may be caught where something smaller can be tried."""
