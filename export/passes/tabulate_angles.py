"""Rotary angles are looked up by position, in place of sines and cosines of large numbers: an NPU computes in 16 bits, and WebGPU has no
whole numbers of 64 bits to compute them from."""

from __future__ import annotations

import onnx_ir as ir

from edgespec.export.passes.base import GraphPass, standard_nodes
from edgespec.export.passes.rotary_tables import rotary_tables


class TabulateAngles(GraphPass):
    """Needs ``RotaryEmbedding`` nodes with angles of equal layers merged (Tidy). ``capacity`` is the number of positions."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity

    def edit(self, graph: ir.Graph) -> bool:
        positions = next(value for value in graph.inputs if value.name == "position_ids")
        found: dict[tuple[str, ...], tuple[ir.Value, ir.Value] | None] = {}
        for node in standard_nodes(graph, "RotaryEmbedding"):
            _, cos, sin = node.inputs
            assert cos is not None
            assert sin is not None
            key = (str(cos.name), str(sin.name))
            if key not in found:
                tables = rotary_tables(graph, cos, sin, self.capacity)
                found[key] = tables and tuple(_look_up(graph, node, table, positions) for table in tables)  # type: ignore[assignment]
            for index, value in enumerate(found[key] or (), 1):
                node.replace_input_with(index, value)
        return bool(found)


def _look_up(graph: ir.Graph, before: ir.Node, table: ir.Value, positions: ir.Value) -> ir.Value:
    """Rows ``[1, S, R/2]`` of a table by position."""
    node = ir.node("Gather", [table, positions], {"axis": 0})
    graph.insert_before(before, node)
    return node.outputs[0]
