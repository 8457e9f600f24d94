"""The seam: what the runtime asks of ONNX Runtime. Names are those of the onnxruntime package, which is one of the backends.

Shapes and pointers are the caller's to get right: a binding is given raw memory, which has to live as long as the binding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class NodeArg(Protocol):
    """An input or output of a graph."""

    @property
    def name(self) -> str: ...

    @property
    def type(self) -> str:
        """Such as "tensor(float)"."""
        ...

    @property
    def shape(self) -> list[Any]:
        """A number for each dimension, a text for one that has only a name, None for one without."""
        ...


class SessionOptions(Protocol):
    intra_op_num_threads: int
    inter_op_num_threads: int
    enable_cpu_mem_arena: bool
    enable_mem_pattern: bool
    log_severity_level: int
    optimized_model_filepath: str

    def add_session_config_entry(self, key: str, value: str) -> None: ...


class RunOptions(Protocol):
    terminate: bool
    """Set from another thread, it makes the runs that were given these options fail as soon as they can."""

    def add_run_config_entry(self, key: str, value: str) -> None: ...


class IOBinding(Protocol):
    """Memory of the inputs and outputs of a session. Binding a name again replaces what was bound."""

    def bind_input(self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int) -> None: ...

    def bind_output(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None: ...


class InferenceSession(Protocol):
    """A loaded graph. Runs of one session in several threads are fine; the interpreter's lock is free during a run."""

    def get_inputs(self) -> Sequence[NodeArg]: ...

    def get_outputs(self) -> Sequence[NodeArg]: ...

    def get_providers(self) -> Sequence[str]: ...

    def get_session_options(self) -> Any: ...

    def io_binding(self) -> Any:
        """A new, empty :class:`IOBinding`."""
        ...

    def run_with_iobinding(self, iobinding: Any, run_options: Any = None) -> None: ...


class OnnxRuntime(Protocol):
    """A backend: the module onnxruntime, or a library that was opened. What fails in it raises some Exception."""

    __version__: str

    def get_available_providers(self) -> list[str]: ...

    def SessionOptions(self) -> Any:
        """New :class:`SessionOptions`."""
        ...

    def RunOptions(self) -> Any:
        """New :class:`RunOptions`."""
        ...

    def InferenceSession(
        self, path: str, sess_options: Any, providers: Sequence[str | tuple[str, dict[str, str]]], enable_fallback: int = ...
    ) -> InferenceSession:
        """Load the graph at ``path``."""
        ...
