"""ONNX Runtime sessions: how they are made, and the one place where ONNX Runtime's errors become ours.

What the settings are for, measured with ONNX Runtime 1.32 on two cores:

* threads of a session spin while they wait for work, also between passes. A session that is alone keeps that: waking a thread for
  every pass costs a tenth to a quarter of plain decoding (docs/log.md). Two sessions (target and draft) that spin on the same
  cores starve each other, so theirs stop spinning when a pass ends;
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
SPIN_US = "1000"  # outlasts every pause inside a pass


def import_onnxruntime() -> Any:
    """The onnxruntime module, imported when it is first needed and with its telemetry off unless the user asked for it."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    return onnxruntime


def default_threads() -> int:
    """Cores that this process may use. What taskset or a container allows counts, and two threads of one core count once:
    they share the arithmetic units that a pass keeps busy."""
    affinity = getattr(os, "sched_getaffinity", None)
    cpus = sorted(affinity(0)) if affinity else list(range(os.cpu_count() or 1))
    cores = {_siblings(cpu) for cpu in cpus}
    return max(1, min(len(cores), _quota()))


def _siblings(cpu: int) -> str:
    """The CPUs that share a core with this one, as Linux lists them; itself where the system does not tell."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return str(cpu)


def _quota() -> int:
    """Whole CPUs that a container's time limit amounts to (cgroup v2), at least 1; many where there is none."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return max(1, int(quota) // int(period))
    except (OSError, ValueError):  # no cgroup, or "max"
        return 2**16


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


def make_session(graph: Path, threads: int, providers: Sequence[str], alone: bool = True) -> onnxruntime.InferenceSession:
    """Load a graph. ``alone`` says that no other session is going to run in turns with it.

    Raises:
        RuntimeFailure: ONNX Runtime refuses the file; the message is the first line of its own.
    """
    ort = import_onnxruntime()
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 4  # An error is raised anyway; it need not be on stderr as well.
    if not alone:
        options.add_session_config_entry("session.force_spinning_stop", "1")
        options.add_session_config_entry("session.intra_op.spin_duration_us", SPIN_US)  # older versions ignore it
    try:
        return ort.InferenceSession(str(graph), options, providers=list(providers))
    except Exception as error:  # onnxruntime's exceptions have no common base of their own
        raise RuntimeFailure(f"{graph}: ONNX Runtime cannot load this graph: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """The error in one line of at most 300 characters."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return text if len(text) <= 300 else text[:297] + "..."
