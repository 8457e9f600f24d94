"""ONNX Runtime through its C API: the classes of :mod:`edgespec.runtime.ort.api` on ctypes."""

from __future__ import annotations

import ctypes
import math
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from edgespec.runtime.ort.table import ELEMENT_TYPES, Api, OrtError

NUMPY_TYPES = {np.dtype(name): code for code, name in ELEMENT_TYPES.items() if name not in ("string", "bfloat16", "float", "double")}
NUMPY_TYPES |= {np.dtype(np.float32): 1, np.dtype(np.float64): 11}
WARNING = 2
ARENA_ALLOCATOR, DEFAULT_MEMORY = 1, 0
# Providers are called one way in Python and another in C; the rest drop the suffix only.
C_NAMES = {
    "XnnpackExecutionProvider": "XNNPACK",
    "WebGpuExecutionProvider": "WebGPU",
    "JsExecutionProvider": "JS",
    "AzureExecutionProvider": "AZURE",
}
CPU, CUDA, SUFFIX = "CPUExecutionProvider", "CUDAExecutionProvider", "ExecutionProvider"


class Library:
    """An opened library. Stands for the module onnxruntime, so its attributes have that one's names."""

    def __init__(self, library: ctypes.CDLL, api: Api, version: str) -> None:
        self.__version__ = version
        self.api = api
        self._library = library  # keeps it open
        self._lock = threading.Lock()
        self._environment = 0
        self.allocator = self.api.create("GetAllocatorWithDefaultOptions")
        self.cpu_memory = self.api.create("CreateCpuMemoryInfo", ARENA_ALLOCATOR, DEFAULT_MEMORY)

    @property
    def environment(self) -> int:
        """ONNX Runtime's environment, one for the process and as long as it lives."""
        with self._lock:
            if not self._environment:
                self._environment = self.api.create("CreateEnv", WARNING, b"edgespec")
            return self._environment

    def get_available_providers(self) -> list[str]:
        names, count = ctypes.POINTER(ctypes.c_char_p)(), ctypes.c_int()
        self.api.GetAvailableProviders(ctypes.byref(names), ctypes.byref(count))
        try:
            return [(names[index] or b"").decode() for index in range(count.value)]
        finally:
            self.api.ReleaseAvailableProviders(names, count)

    def SessionOptions(self) -> SessionOptions:
        return SessionOptions()

    def RunOptions(self) -> RunOptions:
        return RunOptions(self)

    def InferenceSession(
        self,
        path: str,
        sess_options: Any,
        providers: Sequence[str | tuple[str, dict[str, str]]],
        enable_fallback: int = 0,  # noqa: ARG002
    ) -> InferenceSession:
        """Unlike the package this never goes on with the CPU alone where a provider does not start."""
        kind = ToldSession if self.api.tells_assignment else InferenceSession
        return kind(self, path, sess_options, [(item, {}) if isinstance(item, str) else item for item in providers])


class SessionOptions:
    """Settings of a session, with onnxruntime's defaults; applied when the session is made."""

    def __init__(self) -> None:
        self.intra_op_num_threads = 0
        self.inter_op_num_threads = 0
        self.enable_cpu_mem_arena = True
        self.enable_mem_pattern = True
        self.log_severity_level = -1
        self.optimized_model_filepath = ""
        self._entries: dict[str, str] = {}

    def add_session_config_entry(self, key: str, value: str) -> None:
        self._entries[key] = value

    def apply(self, api: Api, options: int) -> None:
        """Set all of it on the C API's own ``options``."""
        api.SetIntraOpNumThreads(options, self.intra_op_num_threads)
        api.SetInterOpNumThreads(options, self.inter_op_num_threads)
        (api.EnableCpuMemArena if self.enable_cpu_mem_arena else api.DisableCpuMemArena)(options)
        (api.EnableMemPattern if self.enable_mem_pattern else api.DisableMemPattern)(options)
        if self.log_severity_level >= 0:
            api.SetSessionLogSeverityLevel(options, self.log_severity_level)
        if self.optimized_model_filepath:
            api.SetOptimizedModelFilePath(options, path_argument(self.optimized_model_filepath))
        for key, value in self._entries.items():
            api.AddSessionConfigEntry(options, key.encode(), value.encode())


class RunOptions:
    """Settings of runs; ``terminate`` may be set from another thread while one is under way."""

    def __init__(self, library: Library) -> None:
        self._api = library.api
        self.handle = self._api.create("CreateRunOptions")
        self._terminate = False
        freed_with(self, self._api.ReleaseRunOptions, self.handle)

    @property
    def terminate(self) -> bool:
        return self._terminate

    @terminate.setter
    def terminate(self, value: bool) -> None:
        (self._api.RunOptionsSetTerminate if value else self._api.RunOptionsUnsetTerminate)(self.handle)
        self._terminate = value

    def add_run_config_entry(self, key: str, value: str) -> None:
        self._api.AddRunConfigEntry(self.handle, key.encode(), value.encode())


class NodeArg:
    """An input or output of a graph, see :class:`edgespec.runtime.ort.api.NodeArg`."""

    def __init__(self, name: str, kind: str, shape: list[int | str | None]) -> None:
        self.name = name
        self.type = kind
        self.shape = shape


class InferenceSession:
    """A loaded graph. Freed with its last reference, of which every binding holds one."""

    def __init__(self, library: Library, path: str, sess_options: Any, providers: Sequence[tuple[str, dict[str, str]]]) -> None:
        self.library = library
        self._options = sess_options
        self._providers = list(dict.fromkeys([*(name for name, _ in providers), CPU]))
        api = library.api
        options = api.create("CreateSessionOptions")
        try:
            sess_options.apply(api, options)
            for name, settings in providers:
                try:
                    append_provider(api, options, name, settings)
                except OrtError as error:
                    raise OrtError(f"{name}: {error}") from error
            self.handle = api.create("CreateSession", library.environment, path_argument(path), options)
        finally:
            api.ReleaseSessionOptions(options)
        freed_with(self, api.ReleaseSession, self.handle)

    def get_session_options(self) -> Any:
        return self._options

    def get_providers(self) -> list[str]:
        return list(self._providers)

    def get_inputs(self) -> list[NodeArg]:
        return self._arguments("Input")

    def get_outputs(self) -> list[NodeArg]:
        return self._arguments("Output")

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        self.library.api.RunWithBinding(self.handle, run_options.handle if run_options else None, iobinding.handle)

    def _arguments(self, kind: str) -> list[NodeArg]:
        api, count = self.library.api, ctypes.c_size_t()
        getattr(api, f"SessionGet{kind}Count")(self.handle, ctypes.byref(count))
        return [self._argument(kind, index) for index in range(count.value)]

    def _argument(self, kind: str, index: int) -> NodeArg:
        api, allocator = self.library.api, self.library.allocator
        pointer = api.create(f"SessionGet{kind}Name", self.handle, index, allocator)
        try:
            name = ctypes.string_at(pointer).decode()
        finally:
            api.AllocatorFree(allocator, pointer)
        info = api.create(f"SessionGet{kind}TypeInfo", self.handle, index)
        try:
            return NodeArg(name, *tensor_type(api, info))
        finally:
            api.ReleaseTypeInfo(info)


class AssignedNode:
    """A node by its operator."""

    def __init__(self, api: Api, handle: int) -> None:
        self.op_type = api.text("EpAssignedNode_GetOperatorType", handle)


class AssignedSubgraph:
    """Nodes that a provider was given."""

    def __init__(self, api: Api, handle: int) -> None:
        self.ep_name = api.text("EpAssignedSubgraph_GetEpName", handle)
        self._nodes = [AssignedNode(api, node) for node in api.handles("EpAssignedSubgraph_GetNodes", handle)]

    def get_nodes(self) -> list[AssignedNode]:
        return self._nodes


class ToldSession(InferenceSession):
    """One of a library that tells which provider runs what."""

    def get_provider_graph_assignment_info(self) -> list[AssignedSubgraph]:
        api = self.library.api
        return [AssignedSubgraph(api, part) for part in api.handles("Session_GetEpGraphAssignmentInfo", self.handle)]


class IOBinding:
    """Memory bound to a session's inputs and outputs."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session  # outlives the binding
        self._library = session.library
        api = self._library.api
        self.handle = api.create("CreateIoBinding", session.handle)
        freed_with(self, api.ReleaseIoBinding, self.handle)

    def bind_input(self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int) -> None:
        self._bind(self._library.api.BindInput, name, (device_type, device_id), element_type, shape, buffer_ptr)

    def bind_output(self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int) -> None:
        self._bind(self._library.api.BindOutput, name, (device_type, device_id), element_type, shape, buffer_ptr)

    def _bind(
        self, bind: Callable[..., None], name: str, device: tuple[str, int], element_type: Any, shape: Sequence[int], pointer: int
    ) -> None:
        if device != ("cpu", 0):
            raise OrtError(f"{name}: memory of {device[0]} {device[1]} cannot be bound through the C library, only that of the CPU")
        api, dtype, rank = self._library.api, np.dtype(element_type), len(shape)
        dims = (ctypes.c_int64 * rank)(*shape)
        size = math.prod(shape) * dtype.itemsize
        value = api.create("CreateTensorWithDataAsOrtValue", self._library.cpu_memory, pointer, size, dims, rank, NUMPY_TYPES[dtype])
        try:
            bind(self.handle, name.encode(), value)  # which takes a reference of its own
        finally:
            api.ReleaseValue(value)


def freed_with(owner: object, release: Callable[[int], None], handle: int) -> None:
    """Call ``release(handle)`` when ``owner`` goes. Not when the process ends: a thread may be in the middle of a run then."""
    weakref.finalize(owner, release, handle).atexit = False


def append_provider(api: Api, options: int, provider: str, settings: dict[str, str]) -> None:
    """Make ``provider`` the next one to be asked whether it runs a node. The CPU is always the last."""
    if provider == CPU:
        return
    count = len(settings)
    keys = (ctypes.c_char_p * count)(*(key.encode() for key in settings))
    values = (ctypes.c_char_p * count)(*(value.encode() for value in settings.values()))
    if provider == CUDA:
        own = api.create("CreateCUDAProviderOptions")
        try:
            api.UpdateCUDAProviderOptions(own, keys, values, count)
            api.SessionOptionsAppendExecutionProvider_CUDA_V2(options, own)
        finally:
            api.ReleaseCUDAProviderOptions(own)
        return
    name = C_NAMES.get(provider, provider.removesuffix(SUFFIX))
    api.SessionOptionsAppendExecutionProvider(options, name.encode(), keys, values, count)


def tensor_type(api: Api, info: int) -> tuple[str, list[int | str | None]]:
    """Type and shape as the Python package gives them, for what an OrtTypeInfo says of a tensor."""
    tensor = api.create("CastTypeInfoToTensorInfo", info)  # part of info, not to be freed
    if not tensor:
        return "not a tensor", []
    element, count = ctypes.c_int(), ctypes.c_size_t()
    api.GetTensorElementType(tensor, ctypes.byref(element))
    api.GetDimensionsCount(tensor, ctypes.byref(count))
    sizes, names = (ctypes.c_int64 * count.value)(), (ctypes.c_char_p * count.value)()
    api.GetDimensions(tensor, sizes, count.value)
    api.GetSymbolicDimensions(tensor, names, count.value)
    shape = [size if size >= 0 else (name or b"").decode() or None for size, name in zip(sizes, names, strict=True)]
    return f"tensor({ELEMENT_TYPES.get(element.value, f'type {element.value}')})", shape


def path_argument(path: str) -> Any:
    """A path as ONNX Runtime takes it: wide characters on Windows, bytes elsewhere."""
    wide = sys.platform == "win32"
    text = ctypes.create_unicode_buffer(path) if wide else ctypes.create_string_buffer(os.fsencode(path))
    return ctypes.cast(text, ctypes.c_void_p)  # which keeps the buffer
