"""Attention that can be given more rows than there are new tokens, so that its arithmetic does not depend on their number.

The CPU's attention takes another path for a single row than for several, and so sums in another order; on x86-64 that is the one
thing that makes a pass of one token differ from a wider one (docs/exactness.md). Behind this pass attention has as many rows as
``position_ids`` has entries, P. Where these are more than the S tokens, zeros stand in front of attention for the missing rows of
q, k and v, and their results are cut off behind it: everything else in the graph still has S rows.

Costs two nodes a layer: nothing that could be measured, and 2 % of a pass of one token where it is used.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgespec.export.passes.base import MICROSOFT, GraphPass, constant, is_op, put_behind, static_shape

POSITION_IDS = 9
"""Which input of ``GroupQueryAttention``."""


class PadAttention(GraphPass):
    """Needs ``GroupQueryAttention`` on ``[1, S, heads * D]``, packed or not, and leaves S apart from P."""

    def edit(self, graph: ir.Graph) -> bool:
        nodes = [node for node in graph if is_op(node, "GroupQueryAttention", MICROSOFT)]
        if not nodes:
            return False
        inputs = {value.name: value for value in graph.inputs}
        tokens, positions = inputs["input_ids"], inputs["position_ids"]
        # Rotary nodes in front of attention, for example, turn the rows that there are.
        others = [use for use in tuple(positions.uses()) if not (use.node in nodes and use.idx == POSITION_IDS)]
        self._count_rows_apart(graph)
        zero, one = (constant(graph, f"int_{number}", np.array([number], np.int64)) for number in (0, 1))
        count, attended = (ir.node("Shape", [value], {"start": 1, "end": 2}) for value in (tokens, positions))
        missing = ir.node("Sub", [attended.outputs[0], count.outputs[0]])
        before = constant(graph, "pad_nothing_before", np.zeros(4, np.int64))
        pads = ir.node("Concat", [before, missing.outputs[0], zero], {"axis": 0})
        real = ir.node("Slice", [positions, zero, count.outputs[0], one])
        for use in others:
            use.node.replace_input_with(use.idx, real.outputs[0])
        graph.insert_before(graph[0], [count, attended, missing, pads, *([real] if others else [])])
        for node in nodes:
            _pad(graph, node, pads.outputs[0])
            put_behind(graph, node, ir.node("Slice", [node.outputs[0], zero, count.outputs[0], one]))
        return True

    @staticmethod
    def _count_rows_apart(graph: ir.Graph) -> None:
        """Name the rows of what is per row of attention P, where it was S."""
        for value in graph.inputs:
            name = str(value.name)
            if name == "position_ids":
                value.shape = ir.Shape([1, "P"])
            elif name.startswith("attention_bias"):
                value.shape = ir.Shape([1, 1, "P", "T"])


def _pad(graph: ir.Graph, node: ir.Node, pads: ir.Value) -> None:
    for index, value in enumerate(node.inputs[:3]):
        shape = static_shape(value)
        if value is None or (shape is not None and shape[1] == 0):  # layers that share another's keys and values bring none
            continue
        padded = ir.node("Pad", [value, pads])
        graph.insert_before(node, padded)
        node.replace_input_with(index, padded.outputs[0])
