"""``Attention`` of the dialect becomes ``GroupQueryAttention`` of com.microsoft over shared past and present buffers.

Adds the graph inputs that say how many rows are valid and which new rows see which. Without a bias each row sees those before it: such
a graph takes no trees, and there a window is the kernel's own.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgespec.errors import UnsupportedModelError
from edgespec.export.passes.base import MICROSOFT, GraphPass, constant, dialect_nodes, replace, static_shape, typed


class LowerAttention(GraphPass):
    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.bias = bias

    def edit(self, graph: ir.Graph) -> bool:
        tokens = graph.inputs[0].shape[1] if graph.inputs[0].shape is not None else "S"
        seqlens = typed("seqlens_k", ir.DataType.INT32, [1])
        total = typed("total_sequence_length", ir.DataType.INT32, [])
        own, shared = list(dialect_nodes(graph, "Attention")), list(dialect_nodes(graph, "SharedAttention"))
        # A window is part of the bias: the kernel's own counts rows, and in a tree rows and positions differ.
        windows = sorted({node.attributes["window"].as_int() for node in (*own, *shared)} | {0})
        names = {window: f"attention_bias_window_{window}" if window else "attention_bias" for window in windows}
        biases = {window: typed(name, ir.DataType.FLOAT, [1, 1, tokens, "T"]) for window, name in names.items() if self.bias}
        graph.inputs[2:2] = [seqlens, total, *biases.values()]
        unused: list[ir.Value | None] = [None, None, None]  # cos_cache, sin_cache, position_ids
        for node in own:
            query, key, value, past_key, past_value, *sink = node.inputs
            bias = biases.get(node.attributes["window"].as_int())
            inputs = [query, key, value, past_key, past_value, seqlens, total, *unused, bias, *sink]
            replace(graph, node, self._attention(node, inputs, past_key, past_value))
        for node in shared:
            # No new keys and values, and no cache to write: the other layer's rows, the new ones included, are its past.
            query, past_key, past_value, *sink = node.inputs
            none = constant(graph, f"no_rows_{_width(node, past_key)}", np.zeros((1, 0, _width(node, past_key)), np.float32))
            bias = biases.get(node.attributes["window"].as_int())
            inputs = [query, none, none, past_key, past_value, seqlens, total, *unused, bias, *sink]
            new = self._attention(node, inputs, past_key, past_value)
            replace(graph, node, new)
            for output in new.outputs[1:]:
                output.name = ""
        return True

    def _attention(self, node: ir.Node, inputs: list[ir.Value | None], key: ir.Value | None, value: ir.Value | None) -> ir.Node:
        if key is None or value is None or key.shape != value.shape:
            raise UnsupportedModelError(f"layer {node.attributes['layer'].as_int()}: keys and values have different head sizes")
        attributes: dict[str, int | float] = {
            "num_heads": node.attributes["num_heads"].as_int(),
            "kv_num_heads": node.attributes["kv_num_heads"].as_int(),
            "scale": node.attributes["scale"].as_float(),
            "softcap": node.attributes["softcap"].as_float(),
            "do_rotary": 0,
        }
        window = node.attributes["window"].as_int()
        if window and not self.bias:
            attributes["local_window_size"] = window
        return ir.node("GroupQueryAttention", inputs, attributes, domain=MICROSOFT, version=1, num_outputs=3)


def _width(node: ir.Node, cache: ir.Value | None) -> int:
    """Heads times head size of a cache ``[1, G, C, D]``."""
    shape = static_shape(cache)
    assert shape is not None
    assert shape[3] is not None
    return node.attributes["kv_num_heads"].as_int() * shape[3]
