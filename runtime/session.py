"""ONNX Runtime sessions: how they are made, and the one place where ONNX Runtime's errors become ours.

What the settings are for, measured with ONNX Runtime 1.32 on two cores:

* by default the threads of a session spin while they wait for work. With two sessions (target and draft) on the same
  cores they starve each other and every pass is 1.6 to 3 times slower; when another process wants the cores a pass of
  one session alone is too (SmolLM2-135M, int8: 20 against 10 ms). Spinning only until the end of a run helps the
  first and not the second, so there is none;
* the memory arena keeps what the largest pass ever needed. It is off: prefill in chunks needs little, and decoding
  works in buffers of our own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec.errors import RuntimeFailure, UsageError

if TYPE_CHECKING:
    import onnxruntime

DEFAULT_PROVIDERS = ("CPUExecutionProvider",)


def import_onnxruntime() -> Any:
    """The onnxruntime module, imported when it is first needed and with its telemetry off unless the user asked for it."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    return onnxruntime


def default_threads() -> int:
    """Cores that this process may use; a container's or taskset's limit counts."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def check_providers(providers: Sequence[str] | None) -> tuple[str, ...]:
    """The execution providers to use, in order; the CPU alone for None."""
    if providers is None:
        return DEFAULT_PROVIDERS
    chosen = (providers,) if isinstance(providers, str) else tuple(providers)
    available = import_onnxruntime().get_available_providers()
    for provider in chosen:
        if provider not in available:
            raise UsageError(f"provider {provider!r}: this onnxruntime has only {', '.join(available)}")
    if not chosen:
        raise UsageError("providers: name at least one, such as CPUExecutionProvider")
    return chosen


def make_session(graph: Path, threads: int, providers: Sequence[str]) -> onnxruntime.InferenceSession:
    """Load a graph.

    Raises:
        RuntimeFailure: ONNX Runtime refuses the file; the message is the first line of its own.
    """
    ort = import_onnxruntime()
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 4  # An error is raised anyway; it need not be on stderr as well.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return ort.InferenceSession(str(graph), options, providers=list(providers))
    except Exception as error:  # onnxruntime's exceptions have no common base of their own
        raise RuntimeFailure(f"{graph}: ONNX Runtime cannot load this graph: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """The error in one line of at most 300 characters."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return text if len(text) <= 300 else text[:297] + "..."
