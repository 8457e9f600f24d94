"""The function table of ONNX Runtime's C API: which entry is which function, and what it takes.

``OrtGetApiBase()->GetApi(version)`` gives a table of pointers whose order never changes; new functions are added at its end.
The numbers below count the entries of ``struct OrtApi`` in onnxruntime_c_api.h from 0. The youngest function is
SessionOptionsAppendExecutionProvider, of API version 12; ``ASSIGNMENT_FUNCTIONS`` are younger and need not be there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

API_VERSION = 12
ASSIGNMENT_VERSION = 24

Handle = ctypes.c_void_p
Out = ctypes.c_void_p  # a pointer to where the result goes
Text = ctypes.c_char_p
Size = ctypes.c_size_t
Int = ctypes.c_int
Texts = ctypes.POINTER(ctypes.c_char_p)

STATUS_FUNCTIONS: dict[str, tuple[int, tuple[Any, ...]]] = {
    "CreateEnv": (3, (Int, Text, Out)),
    "CreateSession": (7, (Handle, Handle, Handle, Out)),
    "CreateSessionOptions": (10, (Out,)),
    "SetOptimizedModelFilePath": (11, (Handle, Handle)),
    "EnableMemPattern": (16, (Handle,)),
    "DisableMemPattern": (17, (Handle,)),
    "EnableCpuMemArena": (18, (Handle,)),
    "DisableCpuMemArena": (19, (Handle,)),
    "SetSessionLogSeverityLevel": (22, (Handle, Int)),
    "SetIntraOpNumThreads": (24, (Handle, Int)),
    "SetInterOpNumThreads": (25, (Handle, Int)),
    "SessionGetInputCount": (30, (Handle, Out)),
    "SessionGetOutputCount": (31, (Handle, Out)),
    "SessionGetInputTypeInfo": (33, (Handle, Size, Out)),
    "SessionGetOutputTypeInfo": (34, (Handle, Size, Out)),
    "SessionGetInputName": (36, (Handle, Size, Handle, Out)),
    "SessionGetOutputName": (37, (Handle, Size, Handle, Out)),
    "CreateRunOptions": (39, (Out,)),
    "RunOptionsSetTerminate": (46, (Handle,)),
    "RunOptionsUnsetTerminate": (47, (Handle,)),
    "CreateTensorWithDataAsOrtValue": (49, (Handle, Handle, Size, Handle, Size, Int, Out)),
    "CastTypeInfoToTensorInfo": (55, (Handle, Out)),
    "GetTensorElementType": (60, (Handle, Out)),
    "GetDimensionsCount": (61, (Handle, Out)),
    "GetDimensions": (62, (Handle, Out, Size)),
    "GetSymbolicDimensions": (63, (Handle, Out, Size)),
    "CreateCpuMemoryInfo": (69, (Int, Int, Out)),
    "AllocatorFree": (76, (Handle, Handle)),
    "GetAllocatorWithDefaultOptions": (78, (Out,)),
    "GetAvailableProviders": (125, (Out, Out)),
    "ReleaseAvailableProviders": (126, (Handle, Int)),
    "AddSessionConfigEntry": (130, (Handle, Text, Text)),
    "RunWithBinding": (133, (Handle, Handle, Handle)),
    "CreateIoBinding": (134, (Handle, Out)),
    "BindInput": (136, (Handle, Text, Handle)),
    "BindOutput": (137, (Handle, Text, Handle)),
    "AddRunConfigEntry": (165, (Handle, Text, Text)),
    "SessionOptionsAppendExecutionProvider_CUDA_V2": (204, (Handle, Handle)),
    "CreateCUDAProviderOptions": (205, (Out,)),
    "UpdateCUDAProviderOptions": (206, (Handle, Texts, Texts, Size)),
    "SessionOptionsAppendExecutionProvider": (216, (Handle, Text, Texts, Texts, Size)),
}
"""Functions that return a status: entry and arguments."""

ASSIGNMENT_FUNCTIONS: dict[str, tuple[int, tuple[Any, ...]]] = {
    "Session_GetEpGraphAssignmentInfo": (407, (Handle, Out, Out)),
    "EpAssignedSubgraph_GetEpName": (408, (Handle, Out)),
    "EpAssignedSubgraph_GetNodes": (409, (Handle, Out, Out)),
    "EpAssignedNode_GetOperatorType": (412, (Handle, Out)),
}
"""Which provider has which nodes. Everything in the answers belongs to the session."""

RELEASE_FUNCTIONS = {
    "ReleaseStatus": 93,
    "ReleaseSession": 95,
    "ReleaseValue": 96,
    "ReleaseRunOptions": 97,
    "ReleaseTypeInfo": 98,
    "ReleaseSessionOptions": 100,
    "ReleaseIoBinding": 135,
    "ReleaseCUDAProviderOptions": 208,
}
"""Functions that free an object and return nothing."""

GET_ERROR_CODE, GET_ERROR_MESSAGE = 1, 2

ERROR_CODES = (
    "OK", "FAIL", "INVALID_ARGUMENT", "NO_SUCHFILE", "NO_MODEL", "ENGINE_ERROR", "RUNTIME_EXCEPTION", "INVALID_PROTOBUF", "MODEL_LOADED",
    "NOT_IMPLEMENTED", "INVALID_GRAPH", "EP_FAIL",
)  # fmt: skip

ELEMENT_TYPES = {
    1: "float", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string", 9: "bool", 10: "float16", 11: "double",
    12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16",
}  # fmt: skip
"""ONNX's element types as the Python package spells them."""


class OrtApiBase(ctypes.Structure):
    _fields_ = [
        ("GetApi", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)),
        ("GetVersionString", ctypes.CFUNCTYPE(ctypes.c_char_p)),
    ]


class OrtError(Exception):
    """A status that is not OK, in the words of the Python package."""


class Api:
    """The functions above as methods, made from a table's address.

    The interpreter's lock is free while one runs. A status becomes :class:`OrtError`. ``tells_assignment`` says that the table
    is long enough for :data:`ASSIGNMENT_FUNCTIONS`.
    """

    def __init__(self, table: int, tells_assignment: bool) -> None:
        self.tells_assignment = tells_assignment
        functions = {**STATUS_FUNCTIONS, **(ASSIGNMENT_FUNCTIONS if tells_assignment else {})}
        last = max(*(entry for entry, _ in functions.values()), *RELEASE_FUNCTIONS.values())
        entries = (ctypes.c_void_p * (last + 1)).from_address(table)
        self._code = ctypes.CFUNCTYPE(Int, Handle)(entries[GET_ERROR_CODE] or 0)
        self._message = ctypes.CFUNCTYPE(Text, Handle)(entries[GET_ERROR_MESSAGE] or 0)
        self._functions: dict[str, Callable[..., Any]] = {}
        for name, entry in RELEASE_FUNCTIONS.items():
            self._functions[name] = ctypes.CFUNCTYPE(None, Handle)(entries[entry] or 0)
        for name, (entry, arguments) in functions.items():
            self._functions[name] = self._checked(ctypes.CFUNCTYPE(Handle, *arguments)(entries[entry] or 0))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        try:
            return self._functions[name]
        except KeyError:
            raise AttributeError(name) from None

    def create(self, name: str, *arguments: Any) -> int:
        """Call a function whose last argument is where a pointer goes, and return that pointer."""
        out = ctypes.c_void_p()
        self._functions[name](*arguments, ctypes.byref(out))
        return out.value or 0

    def text(self, name: str, handle: int) -> str:
        """The text that a function gives, which stays the library's."""
        return ctypes.string_at(self.create(name, handle)).decode()

    def handles(self, name: str, handle: int) -> list[int]:
        """The objects that a function gives as an array, which stays the library's."""
        out, count = ctypes.c_void_p(), ctypes.c_size_t()
        self._functions[name](handle, ctypes.byref(out), ctypes.byref(count))
        return list((ctypes.c_void_p * count.value).from_address(out.value or 0)) if count.value else []

    def _checked(self, function: Callable[..., Any]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            status = function(*arguments)
            if status:
                self._raise(status)

        return call

    def _raise(self, status: int) -> None:
        code = self._code(status)
        message = self._message(status).decode("utf-8", "replace")
        self._functions["ReleaseStatus"](status)
        name = ERROR_CODES[code] if 0 <= code < len(ERROR_CODES) else str(code)
        raise OrtError(f"[ONNXRuntimeError] : {code} : {name} : {message}")
