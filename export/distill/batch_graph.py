"""The target's graph once more, for passes whose rows are texts: row n is the next token of text n, which has a KV cache of its own.

Only attention knows which text a row belongs to: it gets the rows as a batch of passes of one token, and the cache of each. All else
works row by row and stays as it is, over the bundle's own weights.

    input_ids, position_ids [1, N], seqlens_k [N], past_key_values.{i}.* [N, H, C, D]  ->  present.{i}.* [N, H, C, D]
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx_ir as ir

from edgespec.errors import UnsupportedModelError
from edgespec.export.passes.base import MICROSOFT, GraphPass, constant, is_op, put_behind, static_shape
from edgespec.export.passes.pad_attention import POSITION_IDS
from edgespec.files import whole

BIAS = 10
"""Which input of ``GroupQueryAttention``."""
WINDOW = re.compile(r"attention_bias_window_(\d+)")


def write_batch_graph(graph: Path, output: Path) -> None:
    """Write what :class:`TextsAsBatch` makes of ``graph`` into the same folder.

    Raises:
        UnsupportedModelError: its attention is not ONNX Runtime's.
    """
    model = ir.load(graph)
    TextsAsBatch()(model)
    with whole(output) as file:
        file.write(ir.to_proto(model).SerializeToString())


class TextsAsBatch(GraphPass):
    """Needs ``GroupQueryAttention`` on ``[1, S, heads * D]``. A bias goes: a text is a chain, and a window is the kernel's own then."""

    def edit(self, graph: ir.Graph) -> bool:
        nodes = [node for node in graph if is_op(node, "GroupQueryAttention", MICROSOFT)]
        if not nodes:
            raise UnsupportedModelError("texts cannot be written side by side: the graph's attention is not GroupQueryAttention")
        inputs = {str(value.name): value for value in graph.inputs}
        columns = ir.node("Transpose", [inputs["position_ids"]], {"perm": [1, 0]})
        texts = ir.node("Shape", [inputs["input_ids"]], {"start": 1, "end": 2})
        graph.insert_before(graph[0], [columns, texts])
        for node in nodes:
            self._free_of_bias(node)
            for index, value in enumerate(node.inputs[:3]):
                if value is not None:
                    node.replace_input_with(index, self._as_batch(graph, node, value, texts.outputs[0]))
            if len(node.inputs) > POSITION_IDS and node.inputs[POSITION_IDS] is not None:
                node.replace_input_with(POSITION_IDS, columns.outputs[0])
            put_behind(graph, node, ir.node("Transpose", [node.outputs[0]], {"perm": [1, 0, 2]}))
        for name, value in inputs.items():
            if name.startswith("attention_bias"):
                if value.uses():
                    raise UnsupportedModelError(f"texts cannot be written side by side: {name} is not for attention alone")
                graph.inputs.remove(value)
            elif name == "seqlens_k":
                value.shape = ir.Shape(["S"])
        for value in (*graph.inputs, *graph.outputs):
            if str(value.name).startswith(("past_key_values.", "present.")):
                assert value.shape is not None
                value.shape = ir.Shape(["S", *value.shape[1:]])
        return True

    @staticmethod
    def _free_of_bias(node: ir.Node) -> None:
        bias = node.inputs[BIAS] if len(node.inputs) > BIAS else None
        if bias is None:
            return
        window = WINDOW.fullmatch(str(bias.name))
        if window:
            node.attributes["local_window_size"] = ir.AttrInt64("local_window_size", int(window[1]))
        node.replace_input_with(BIAS, None)

    @staticmethod
    def _as_batch(graph: ir.Graph, node: ir.Node, value: ir.Value, texts: ir.Value) -> ir.Value:
        shape = static_shape(value)
        if shape is not None and shape[1] == 0:  # of layers that share another's keys and values: no rows for each text
            rest = constant(graph, f"no_rows_of_{shape[2]}", np.array([0, shape[2]], np.int64))
            sizes = ir.node("Concat", [texts, rest], {"axis": 0})
            new = ir.node("Expand", [value, sizes.outputs[0]])
            graph.insert_before(node, [sizes, new])
        else:
            new = ir.node("Transpose", [value], {"perm": [1, 0, 2]})
            graph.insert_before(node, new)
        return new.outputs[0]
