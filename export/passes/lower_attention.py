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
        # A window is part of the bias: the kernel's own counts rows, and in a tree rows and positions differ.
        windows = sorted({node.attributes["window"].as_int() for node in dialect_nodes(graph, "Attention")} | {0})
        names = {window: f"attention_bias_window_{window}" if window else "attention_bias" for window in windows}
        biases = {window: _input(name, ir.DataType.FLOAT, [1, 1, tokens, "T"]) for window, name in names.items()}
        graph.inputs[2:2] = [seqlens, total, *biases.values()]
        for node in dialect_nodes(graph, "Attention"):
            query, key, value, past_key, past_value, *sink = node.inputs
            assert past_key is not None
            assert past_value is not None
            if past_key.shape != past_value.shape:
                raise UnsupportedModelError(f"layer {node.attributes['layer'].as_int()}: keys and values have different head sizes")
            attributes: dict[str, int | float] = {
                "num_heads": node.attributes["num_heads"].as_int(),
                "kv_num_heads": node.attributes["kv_num_heads"].as_int(),
                "scale": node.attributes["scale"].as_float(),
                "softcap": node.attributes["softcap"].as_float(),
                "do_rotary": 0,
            }
            unused: list[ir.Value | None] = [None, None, None]  # cos_cache, sin_cache, position_ids
            bias = biases[node.attributes["window"].as_int()]
            inputs = [query, key, value, past_key, past_value, seqlens, total, *unused, bias, *sink]
            new = ir.node("GroupQueryAttention", inputs, attributes, domain=MICROSOFT, version=1, num_outputs=3)
            replace(graph, node, new)
        return True


def _input(name: str, dtype: ir.DataType, shape: list[int | str | ir.SymbolicDim]) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
