"""Attention over quantised KV caches: other types of past and present, and scales that are constants.

Needs ``GroupQueryAttention`` in its last form, over caches of its own. Each channel of a layer's keys and values has a scale; a number x
is stored as x / scale, rounded, and cut off at the ends of the type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from edgespec.export.passes.base import MICROSOFT, GraphPass, constant, is_op
from edgespec.runtime.models.kv import KV_TYPES

BITS = {"int8": 8, "int4": 4}
ELEMENTS = {"int8": ir.DataType.INT8, "int4": ir.DataType.UINT8}
PAST_KEY, SCALES = 3, (12, 13)  # inputs of the operator
_CACHE = re.compile(r"(?:past_key_values|present)\.(\d+)\.(?:key|value)")  # the graph contract's names


class QuantiseKv(GraphPass):
    """``scales`` float32 [1, H, 1, D] by the name of a cache, such as ``0.key``."""

    def __init__(self, kv_dtype: str, scales: Mapping[str, np.ndarray]) -> None:
        super().__init__()
        self.kv_dtype = kv_dtype
        self.scales = scales

    def edit(self, graph: ir.Graph) -> bool:
        for node in (node for node in graph if is_op(node, "GroupQueryAttention", MICROSOFT)):
            past = node.inputs[PAST_KEY]
            match = _CACHE.fullmatch((past.name or "") if past is not None else "")
            assert match is not None
            node.resize_inputs(max(SCALES) + 1)
            for position, part in zip(SCALES, ("key", "value"), strict=True):
                name = f"{match[1]}.{part}"
                node.replace_input_with(position, constant(graph, f"kv_scale.{name}", self.scales[name]))
            for part in "kv":
                node.attributes[f"{part}_quant_type"] = ir.AttrString(f"{part}_quant_type", "PER_CHANNEL")
            node.attributes["kv_cache_bit_width"] = ir.AttrInt64("kv_cache_bit_width", BITS[self.kv_dtype])
        for value in (*graph.inputs, *graph.outputs):
            if _CACHE.fullmatch(value.name or ""):
                assert value.shape is not None
                *rows, dim = value.shape
                assert isinstance(dim, int)
                value.type = ir.TensorType(ELEMENTS[self.kv_dtype])
                value.shape = ir.Shape([*rows, KV_TYPES[self.kv_dtype].columns(dim)])
        return True
