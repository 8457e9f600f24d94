"""``Attention`` of the dialect becomes ``GroupQueryAttention`` of com.microsoft over shared past and present buffers.

Adds the graph inputs that say how many rows are valid and which new rows see which.
"""

from __future__ import annotations

import onnx_ir as ir

from edgespec.errors import UnsupportedModelError
from edgespec.export.passes.base import MICROSOFT, GraphPass, dialect_nodes, replace


class LowerAttention(GraphPass):
    def edit(self, graph: ir.Graph) -> bool:
        tokens = graph.inputs[0].shape[1] if graph.inputs[0].shape is not None else "S"
        seqlens = _input("seqlens_k", ir.DataType.INT32, [1])
        total = _input("total_sequence_length", ir.DataType.INT32, [])
        bias = _input("attention_bias", ir.DataType.FLOAT, [1, 1, tokens, "T"])
        graph.inputs[2:2] = [seqlens, total, bias]
        for node in dialect_nodes(graph, "Attention"):
            query, key, value, past_key, past_value = node.inputs
            assert past_key is not None
            assert past_value is not None
            if past_key.shape != past_value.shape:
                raise UnsupportedModelError(f"layer {node.attributes['layer'].as_int()}: keys and values have different head sizes")
            attributes: dict[str, int | float] = {
                "num_heads": node.attributes["num_heads"].as_int(),
                "kv_num_heads": node.attributes["kv_num_heads"].as_int(),
                "scale": node.attributes["scale"].as_float(),
                "local_window_size": node.attributes["window"].as_int() or -1,
                "softcap": node.attributes["softcap"].as_float(),
                "do_rotary": 0,
            }
            unused: list[ir.Value | None] = [None, None, None]  # cos_cache, sin_cache, position_ids
            inputs = [query, key, value, past_key, past_value, seqlens, total, *unused, bias]
            new = ir.node("GroupQueryAttention", inputs, attributes, domain=MICROSOFT, version=1, num_outputs=3)
            replace(graph, node, new)
        return True


def _input(name: str, dtype: ir.DataType, shape: list[int | str | ir.SymbolicDim]) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
