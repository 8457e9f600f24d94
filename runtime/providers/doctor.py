"""What this machine has to run on: its processor, ONNX Runtime, and each execution provider, tried for at most ten seconds."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgespec.errors import UsageError
from edgespec.runtime.cores import default_threads
from edgespec.runtime.ort import import_onnxruntime
from edgespec.runtime.providers.providers import KNOWN, is_present, present, provider
from edgespec.runtime.providers.self_check import SelfCheck, self_check
from edgespec.runtime.tuning.machine import machine_name

# What ONNX Runtime's CPU kernels choose by, as Linux names it.
INSTRUCTIONS = (
    "sse4_1", "avx", "avx2", "fma", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni", "avx_vnni_int8",
    "amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "i8mm", "bf16", "sve", "sve2", "sme", "sme2",
)  # fmt: skip
REMOTE = "AzureExecutionProvider"  # asks a web service, and is no place for our graphs
TELEMETRY = "ORT_DISABLE_TELEMETRY"


@dataclasses.dataclass(frozen=True)
class ProviderReport:
    """One execution provider. ``devices`` are those that ONNX Runtime finds for it; ``check`` is None where it is not installed, and
    ``get`` says how to get it then."""

    name: str
    onnxruntime: str
    devices: tuple[str, ...]
    check: SelfCheck | None
    get: str | None


@dataclasses.dataclass(frozen=True)
class Report:
    """``instructions`` are empty where the system does not tell; ``telemetry`` says whether ONNX Runtime may send any."""

    machine: str
    system: str
    instructions: tuple[str, ...]
    threads: int
    onnxruntime: str
    build: str
    telemetry: str
    providers: tuple[ProviderReport, ...]


def examine(bundle: Path | None = None, on_provider: Callable[[str], None] = lambda _: None) -> Report:
    """Look at everything; ``on_provider`` is told what is being tried, for a progress line."""
    runtime: Any = import_onnxruntime()
    reports = []
    names = [name for name in dict.fromkeys([*present(), *(known.short for known in KNOWN)]) if name != REMOTE]
    for name in names:
        on_provider(name)
        reports.append(_provider_report(runtime, name, bundle))
    return Report(
        machine=machine_name(),
        system=platform.platform(),
        instructions=instruction_sets(),
        threads=default_threads(),
        onnxruntime=runtime.__version__,
        build=runtime.get_build_info() if hasattr(runtime, "get_build_info") else "a C library",
        telemetry=_telemetry(),
        providers=tuple(reports),
    )


def instruction_sets() -> tuple[str, ...]:
    """Those of this processor that ONNX Runtime's kernels choose by, in ascending order of usefulness."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    flags = next((line.partition(":")[2].split() for line in lines if line.partition(":")[0].strip() in ("flags", "Features")), [])
    return tuple(name for name in INSTRUCTIONS if name in flags)


def _telemetry() -> str:
    value = os.environ.get(TELEMETRY, "")
    return f"off ({TELEMETRY}={value})" if value not in ("", "0") else f"on ({TELEMETRY}={value!r})"


def _provider_report(runtime: Any, name: str, bundle: Path | None) -> ProviderReport:
    wanted = provider(name)
    installed = wanted.plugin is not None and importlib.util.find_spec(wanted.plugin) is not None
    if not installed and wanted.name not in runtime.get_available_providers():
        return ProviderReport(name, wanted.name, (), None, wanted.get)
    try:
        is_present(wanted)  # loads a plug-in, which then knows its devices
        devices = tuple(_device(item) for item in _devices(runtime) if item.ep_name == wanted.name)
    except UsageError:
        devices = ()  # the check says why
    return ProviderReport(name, wanted.name, devices, self_check(name, bundle), None)


def _devices(runtime: Any) -> list[Any]:
    return list(runtime.get_ep_devices()) if hasattr(runtime, "get_ep_devices") else []


def _device(item: Any) -> str:
    """``Intel CPU``, with the name that the driver gives where there is one."""
    name = next((value for key, value in item.device.metadata.items() if key.lower() in ("description", "name")), "")
    return " ".join(filter(None, (item.device.vendor, item.device.type.name, f"({name})" if name else "")))
