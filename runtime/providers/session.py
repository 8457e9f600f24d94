"""ONNX Runtime sessions: how they are made, and the one place where ONNX Runtime's errors become ours.

What the settings are for, measured with ONNX Runtime 1.32 on two cores:

* threads of a session spin while they wait for work, also between passes. A session that is alone keeps that: waking a thread for
  every pass costs a tenth to a quarter of plain decoding (docs/log.md). Two sessions (target and draft) that spin on the same
  cores starve each other, so theirs stop spinning when a pass ends;
* the memory arena keeps what the largest pass ever needed. It is off: prefill in chunks needs little, and decoding
  works in buffers of our own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgespec.errors import OutOfMemory, RuntimeFailure
from edgespec.runtime.ort import import_onnxruntime
from edgespec.runtime.ort.api import InferenceSession
from edgespec.runtime.providers.assignment import RECORD_ASSIGNMENT, check_assignment

# How ONNX Runtime, the C++ library and the system say that there is none; a thread's stack is memory, too.
NO_MEMORY_MARKS = (
    "bad_alloc",
    "bad allocation",
    "failed to allocate",
    "cannot allocate memory",
    "not enough memory",
    "resource temporarily",
)
SPIN_US = "1000"  # outlasts every pause inside a pass


@dataclasses.dataclass(frozen=True)
class Choice:
    """An execution provider that a session is made with, by ONNX Runtime's name, and its options.

    ``device`` is ONNX Runtime's object for a device of a plug-in; providers that are built in have none.
    """

    name: str
    options: tuple[tuple[str, str], ...] = ()
    device: Any = dataclasses.field(default=None, compare=False, repr=False)


CPU = Choice("CPUExecutionProvider")
DEFAULT_PROVIDERS = (CPU,)


def make_session(
    graph: Path,
    threads: int,
    providers: Sequence[Choice | str],
    alone: bool = True,
    strict: bool = False,
    entries: Mapping[str, str] | None = None,
) -> InferenceSession:
    """Load a graph.

    Args:
        graph: the ONNX file.
        threads: of a pass.
        providers: in order of preference; what none of them takes runs on the CPU, which is logged as a warning.
        alone: no other session is going to run in turns with it.
        strict: refuse the graph if a part of it would run on another provider.
        entries: of ONNX Runtime's session configuration, besides our own.

    Raises:
        RuntimeFailure: ONNX Runtime refuses the file; the message is the first line of its own. Or a provider cannot be started,
            or, if strict, does not take all of the graph.
    """
    ort: Any = import_onnxruntime()
    chosen = [Choice(item) if isinstance(item, str) else item for item in providers]
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 4  # An error is raised anyway; it need not be on stderr as well.
    for key, value in (entries or {}).items():
        options.add_session_config_entry(key, value)
    if not alone:
        options.add_session_config_entry("session.force_spinning_stop", "1")
        options.add_session_config_entry("session.intra_op.spin_duration_us", SPIN_US)  # older versions ignore it
    try:
        if in_main_memory(chosen):
            made: InferenceSession = ort.InferenceSession(str(graph), options, providers=[CPU.name])
            return made
        session: InferenceSession = _on_other_providers(ort, graph, options, chosen)
    except Exception as error:  # onnxruntime's exceptions have no common base of their own
        raise failure(f"{graph}: ONNX Runtime cannot load this graph", error) from error
    check_assignment(graph, session, [choice.name for choice in chosen], strict)
    return session


def in_main_memory(providers: Sequence[Choice | str]) -> bool:
    """Whether a binding sees what is written into bound memory later on. Of an input for another provider ONNX Runtime may make a copy
    when it is bound, so it has to be bound again for every pass."""
    return {item if isinstance(item, str) else item.name for item in providers} == {CPU.name}


def _on_other_providers(ort: Any, graph: Path, options: Any, chosen: Sequence[Choice]) -> Any:
    """A session that says afterwards which nodes each provider has, and is not made at all where ONNX Runtime's own way would
    be to go on with the CPU alone."""
    options.add_session_config_entry(RECORD_ASSIGNMENT, "1")
    if not any(choice.device for choice in chosen):
        providers = [(choice.name, dict(choice.options)) for choice in chosen]
        return ort.InferenceSession(str(graph), options, providers=providers, enable_fallback=0)
    for choice in chosen:  # Plug-ins are chosen by their devices, and then all others have to be, too.
        devices = [choice.device] if choice.device else [item for item in ort.get_ep_devices() if item.ep_name == choice.name][:1]
        options.add_provider_for_devices(devices, dict(choice.options))
    return ort.InferenceSession(str(graph), options, enable_fallback=0)


def failure(what: str, error: BaseException) -> RuntimeFailure:
    """Our error for one of ONNX Runtime's."""
    line = first_line(error)
    kind = OutOfMemory if isinstance(error, MemoryError) or any(mark in line.lower() for mark in NO_MEMORY_MARKS) else RuntimeFailure
    return kind(f"{what}: {line}")


def first_line(error: BaseException) -> str:
    """The error in one line of at most 300 characters."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return text if len(text) <= 300 else text[:297] + "..."
