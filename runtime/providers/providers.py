"""Execution providers: what ONNX Runtime can run a model on, by short names, and how to get those that are missing.

A provider is either built into the onnxruntime package or a plug-in: a package of its own with a library that is registered
when it is first wanted. A plug-in's devices are named apart, because it may serve several (``openvino:npu``).
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import platform
from collections.abc import Mapping
from typing import Any

from edgespec.errors import UsageError
from edgespec.runtime.ort import import_onnxruntime
from edgespec.runtime.providers.session import Choice, first_line

DYNAMIC = "cpu"  # the profile that every bundle has: one graph for passes of any width
NPU = "npu"  # the one of fixed shapes
DEVICES = ("npu", "gpu", "cpu")  # of a plug-in that serves several, the first of these is taken unless one is named


@dataclasses.dataclass(frozen=True)
class Provider:
    """An execution provider that edgespec has a short name for.

    Attributes:
        short: our name for it.
        name: ONNX Runtime's.
        get: what to do where it is missing.
        plugin: the module that brings it, if it is a plug-in.
        profile: the graphs of a bundle that it can run.
        memory: the memory that its kernels work in, by the name that ONNX Runtime's Python interface has for it.
        caution: what is known to go wrong on it with the graphs that every bundle has.
    """

    short: str
    name: str
    get: str
    plugin: str | None = None
    profile: str = DYNAMIC
    memory: str = "cpu"
    caution: str | None = None


KNOWN = (
    Provider("cpu", "CPUExecutionProvider", "pip install onnxruntime"),
    Provider(
        "cuda",
        "CUDAExecutionProvider",
        "pip uninstall onnxruntime, then pip install onnxruntime-gpu; needs an NVIDIA driver",
        profile="cuda",
        memory="cuda",
    ),
    Provider("coreml", "CoreMLExecutionProvider", "pip install onnxruntime on macOS, whose wheel has it"),
    Provider("qnn", "QNNExecutionProvider", "pip install onnxruntime-qnn", plugin="onnxruntime_qnn", profile=NPU),
    Provider("openvino", "OpenVINOExecutionProvider", "pip install onnxruntime-ep-openvino", plugin="onnxruntime_ep_openvino"),
    Provider(
        "webgpu",
        "WebGpuExecutionProvider",
        "pip install onnxruntime-ep-webgpu; needs a driver for Vulkan, Metal or D3D12",
        plugin="onnxruntime_ep_webgpu",
        profile="webgpu",
        memory="webgpu",
        caution="WebGPU's attention ignores position_ids where it rotates q and k itself, as this graph has it: draft trees would be "
        "verified wrongly; export with --profile webgpu, or use drafters of chains only",
    ),
    Provider("dml", "DmlExecutionProvider", "pip install onnxruntime-directml, on Windows"),
    Provider("xnnpack", "XnnpackExecutionProvider", "build ONNX Runtime with --use_xnnpack; no package on PyPI has it"),
)


def provider(name: str) -> Provider:
    """The provider with this name, ours or ONNX Runtime's. One that we do not know may still be built in."""
    return next((known for known in KNOWN if name in (known.short, known.name)), Provider(name, name, "see ONNX Runtime's documentation"))


def choose(name: str, options: Mapping[str, str] | None = None) -> Choice:
    """``name`` (``cuda``, ``CUDAExecutionProvider``, ``openvino:npu``) with its default options and then ``options``.

    Raises:
        UsageError: it is not installed, cannot be loaded, or has no such device. Says what to install.
    """
    word, _, device = name.partition(":")
    wanted = provider(word)
    if not is_present(wanted):
        raise UsageError(f"providers: {word} is not installed (this onnxruntime has {', '.join(present())}): {wanted.get}")
    if device and (wanted.plugin is None or device not in DEVICES):
        raise UsageError(f"providers: {name}: only plug-ins have a device to choose, one of {', '.join(DEVICES)}")
    settings = tuple({**default_options(wanted), **(options or {})}.items())
    return Choice(wanted.name, settings, device_of(wanted, device) if _module(wanted) else None)


def default_options(wanted: Provider) -> dict[str, str]:
    """Options without which the provider would not do what its short name promises."""
    if wanted.short == "coreml":
        return {"ModelFormat": "MLProgram"}
    if wanted.short == "openvino":  # on processors that have them, it would compute in 16-bit floats unasked
        return {"load_config": '{"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}'}
    if wanted.short == "qnn":
        plugin = _module(wanted)
        options = {"backend_path": str(plugin.get_qnn_htp_path()) if plugin else "QnnHtp"}
        if is_emulated(wanted.name):  # it cannot ask the chip what it is
            options |= {"soc_model": "60", "htp_arch": "73"}
        return options
    return {}


def is_emulated(name: str) -> bool:
    """Whether the provider of this name, ONNX Runtime's, only imitates its chip here."""
    return name == "QNNExecutionProvider" and platform.machine().lower() in ("x86_64", "amd64")


def present() -> list[str]:
    """Short names of the providers that a model could be put on here; ONNX Runtime's name where there is no short one."""
    built_in = import_onnxruntime().get_available_providers()
    plugins = [known.name for known in KNOWN if known.plugin and importlib.util.find_spec(known.plugin) is not None]
    names = dict.fromkeys([*built_in, *plugins])
    return [provider(name).short for name in names if "." not in name]  # a plug-in that is loaded also lists its kinds of devices


def is_present(wanted: Provider) -> bool:
    """Whether it is built in, or a plug-in that can be loaded, which this does."""
    return wanted.name in import_onnxruntime().get_available_providers() or _register(wanted)


def device_of(wanted: Provider, kind: str = "") -> Any:
    """The device of a plug-in that is loaded, as ONNX Runtime names it; ``kind`` is one of ``DEVICES``, empty for the best there is.

    Raises:
        UsageError: the machine has none that the plug-in can use, or none of this kind.
    """
    runtime: Any = import_onnxruntime()
    devices = [item for item in runtime.get_ep_devices() if item.ep_name == wanted.name]
    kinds = {item.device.type.name.lower(): item for item in reversed(devices)}
    found = kind or next((kind for kind in DEVICES if kind in kinds), "")
    if found not in kinds:
        have = f"only {', '.join(kinds)}" if kinds else "none"
        raise UsageError(f"providers: {wanted.short} finds no {kind or 'device'} that it could use here ({have}): {wanted.get}")
    return kinds[found]


@functools.cache
def _module(wanted: Provider) -> Any:
    """The plug-in's Python module, None where it is not installed.

    Raises:
        UsageError: it cannot be imported.
    """
    if wanted.plugin is None or importlib.util.find_spec(wanted.plugin) is None:
        return None
    try:
        return importlib.import_module(wanted.plugin)
    except Exception as error:  # whatever another package does wrong
        raise UsageError(f"providers: {wanted.plugin} is installed and cannot be imported: {first_line(error)}") from error


@functools.cache
def _register(wanted: Provider) -> bool:
    """Load a plug-in, once in a process. False where it is not installed."""
    plugin = _module(wanted)
    if plugin is None:
        return False
    runtime: Any = import_onnxruntime()
    if not hasattr(runtime, "register_execution_provider_library"):
        raise UsageError(f"providers: {wanted.short}: this ONNX Runtime cannot load plug-ins; pip install -U onnxruntime")
    try:
        runtime.register_execution_provider_library(wanted.name, plugin.get_library_path())
    except Exception as error:  # onnxruntime's exceptions have no common base of their own
        raise UsageError(f"providers: {wanted.short}: its library cannot be loaded: {first_line(error)}") from error
    return True
