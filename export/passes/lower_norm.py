"""``RMSNorm`` of the dialect becomes ``SimplifiedLayerNormalization``, which ONNX Runtime has on every provider."""

from __future__ import annotations

import onnx_ir as ir

from edgespec.export.passes.base import GraphPass, dialect_nodes, replace


class LowerNorm(GraphPass):
    def edit(self, graph: ir.Graph) -> bool:
        nodes = list(dialect_nodes(graph, "RMSNorm"))
        for node in nodes:
            attributes = {"epsilon": node.attributes["epsilon"].as_float(), "axis": -1}
            replace(graph, node, ir.node("SimplifiedLayerNormalization", node.inputs, attributes))
        return bool(nodes)
