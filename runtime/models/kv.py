"""How the rows of a KV cache are stored, and which of a bundle's forms of a model are used.

A model can be in a bundle several times over the same weights, as graphs whose caches are of different types (``kv_forms`` of the
manifest). Quantised rows are written and read by ONNX Runtime's attention itself, with scales that are constants of the graph: here
they are bytes that are moved as any others.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from edgespec.errors import RuntimeFailure, UsageError
from edgespec.manifest import KvLayer, Manifest, ModelSpec
from edgespec.manifest_check import KV_DTYPES

QUANTISED = ("int8", "int4")
LEAST_ONNXRUNTIME = (1, 28)  # the first whose attention on the CPU takes quantised caches


@dataclasses.dataclass(frozen=True)
class KvType:
    """``element`` is an entry of the buffers, which holds so many ``numbers``; ``tensor`` is ONNX Runtime's name of its type."""

    element: np.dtype[Any]
    tensor: str
    numbers: int = 1

    def columns(self, dim: int) -> int:
        """Entries for ``dim`` numbers."""
        return -(-dim // self.numbers)


KV_TYPES = {
    "float32": KvType(np.dtype(np.float32), "tensor(float)"),
    "float16": KvType(np.dtype(np.float16), "tensor(float16)"),
    "uint16": KvType(np.dtype(np.uint16), "tensor(uint16)"),
    "int8": KvType(np.dtype(np.int8), "tensor(int8)"),
    "int4": KvType(np.dtype(np.uint8), "tensor(uint8)", numbers=2),
}


def layer_bytes(layer: KvLayer, kv_dtype: str) -> int:
    """Size of one row of a layer's cache."""
    kind = KV_TYPES[kv_dtype]
    return layer.heads * (kind.columns(layer.key_dim) + kind.columns(layer.value_dim)) * kind.element.itemsize


def kv_choice(value: str | Sequence[str] | None, manifest: Manifest, onnxruntime: str) -> tuple[str, ...]:
    """The types that a caller allows the target's cache to have, the preferred one first; its own for None.

    Args:
        value: a type, several with commas between, or a list of them.
        manifest: of the bundle.
        onnxruntime: version of what will run it.

    Raises:
        UsageError: not types, or the bundle was exported without one.
        RuntimeFailure: this ONNX Runtime is too old for one.
    """
    target = manifest.target
    if value is None:
        value = (target.kv_dtype,)
    names = tuple(value.replace(" ", "").split(",") if isinstance(value, str) else value)
    have = (target.kv_dtype, *(target.kv_forms or ()))
    for index, name in enumerate(names):
        if name not in {*KV_DTYPES, target.kv_dtype} or name in names[:index]:
            raise UsageError(f"kv: {value!r} is not a type of KV cache, or several different ones; there are {', '.join(KV_DTYPES)}")
        if name not in have:
            raise UsageError(
                f"kv: this bundle has no {name} KV cache, only {', '.join(have)}; export it with --kv {','.join((*have, name))}"
            )
    used = {with_kv(manifest, name).models[model].kv_dtype for name in names for model in manifest.models}
    if used & set(QUANTISED) and _version(onnxruntime) < LEAST_ONNXRUNTIME:
        least = ".".join(map(str, LEAST_ONNXRUNTIME))
        raise RuntimeFailure(
            f"this bundle's KV cache of {' and '.join(sorted(used & set(QUANTISED)))} needs ONNX Runtime {least} or newer, this is "
            f"{onnxruntime}; upgrade it, or export the bundle with --kv float32"
        )
    return names


def with_kv(manifest: Manifest, kv_dtype: str) -> Manifest:
    """The manifest with the graphs whose caches are of this type, for models that have one; others stay as they are."""
    return dataclasses.replace(manifest, models={name: in_form(spec, kv_dtype) for name, spec in manifest.models.items()})


def in_form(spec: ModelSpec, kv_dtype: str) -> ModelSpec:
    """The model with the graph whose cache is of this type, as it is if it has none."""
    form = (spec.kv_forms or {}).get(kv_dtype)
    if form is None:
        return spec
    return dataclasses.replace(spec, graph=form.graph, kv_dtype=kv_dtype, fidelity=form.fidelity, kv_forms=None, pass_ms=None)


def _version(text: str) -> tuple[int, ...]:
    """The first two numbers of a version; a text without any counts as new."""
    return tuple(map(int, re.findall(r"\d+", text)[:2])) or LEAST_ONNXRUNTIME
