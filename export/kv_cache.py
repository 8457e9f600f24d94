"""Graphs over quantised KV caches, made from the finished graph over float32 ones and the same weights.

Scales come from calibration text: the largest magnitude of each channel of keys and values, as the exported graph itself stores
them. Keys are stored rotated, so a channel's magnitude depends on how far a text goes; the text is therefore read as one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from edgespec.errors import UsageError
from edgespec.export.passes.base import dialect_nodes
from edgespec.export.passes.quantise_kv import BITS, QuantiseKv
from edgespec.manifest import KvForm, ModelSpec
from edgespec.runtime.cores import default_threads
from edgespec.runtime.models.model import Model
from edgespec.runtime.providers.session import DEFAULT_PROVIDERS

ROOM = {"int8": 1.1, "int4": 1.0}  # over the largest magnitude seen: other texts go a little further, but steps get coarser
LEAST = 1e-6  # of a channel that is always 0


def check_kv(graph: ir.Graph) -> None:
    """Refuse a traced graph that ONNX Runtime's attention cannot run over quantised caches.

    Raises:
        UsageError: layers read another layer's cache, which has to be float.
    """
    if any(dialect_nodes(graph, "SharedAttention")):
        raise UsageError("--kv: layers of this model share KV, and ONNX Runtime shares float32 caches only; leave --kv out")


def add_kv_forms(folder: Path, spec: ModelSpec, kv_dtypes: Sequence[str], ids: Sequence[int]) -> ModelSpec:
    """Write a graph for each of ``kv_dtypes`` beside the model's own, calibrated on the tokens ``ids``."""
    if not kv_dtypes:
        return spec
    largest = _largest(folder / spec.graph, spec, ids)
    forms = {}
    for kv_dtype in kv_dtypes:
        steps = 2 ** (BITS[kv_dtype] - 1) - 1
        scales = {name: (np.maximum(value, LEAST) * ROOM[kv_dtype] / steps).astype(np.float32) for name, value in largest.items()}
        model = ir.load(folder / spec.graph)
        QuantiseKv(kv_dtype, scales)(model)
        graph = f"{Path(spec.graph).stem}-{kv_dtype}-kv.onnx"
        ir.save(model, folder / graph)
        forms[kv_dtype] = KvForm(graph)
    return dataclasses.replace(spec, kv_forms=forms)


def use_first(folder: Path, spec: ModelSpec, kv_dtypes: Sequence[str]) -> ModelSpec:
    """The model with the first of ``kv_dtypes`` as its own graph and the others as its forms. The graph over float32 caches goes if it
    is not among them."""
    forms = {spec.kv_dtype: KvForm(spec.graph, spec.fidelity), **(spec.kv_forms or {})}
    if spec.kv_dtype not in kv_dtypes:
        (folder / spec.graph).unlink()
    first, *others = kv_dtypes
    more = {kv_dtype: forms[kv_dtype] for kv_dtype in others} or None
    return dataclasses.replace(spec, graph=forms[first].graph, kv_dtype=first, fidelity=forms[first].fidelity, kv_forms=more)


def _largest(graph: Path, spec: ModelSpec, ids: Sequence[int]) -> dict[str, np.ndarray]:
    """The largest magnitude [1, H, 1, D] of each channel of each cache, by the cache's name."""
    capacity = min(spec.capacity, len(ids))
    model = Model(graph, spec, capacity=capacity, threads=default_threads(), providers=DEFAULT_PROVIDERS)
    names = [f"{layer}.{part}" for layer in range(len(spec.layers)) for part in ("key", "value")]
    largest = {name: np.zeros((1, 1, 1, 1), np.float32) for name in names}
    for start in range(0, len(ids), capacity):
        model.keep(0)
        text = ids[start : start + capacity]
        for first in range(0, len(text), model.chunk):
            model.run(text[first : first + model.chunk], [0])
            rows = model.cache_rows(first, model.length)
            for name, cache in zip(names, rows, strict=False):  # behind the caches there may be hidden states
                largest[name] = np.maximum(largest[name], np.abs(cache).max(2, keepdims=True))
    return largest
