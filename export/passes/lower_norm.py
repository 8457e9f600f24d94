"""``RMSNorm`` of the dialect becomes ``SimplifiedLayerNormalization``, which ONNX Runtime has on every provider of its own, or
``RMSNormalization`` of opset 23."""

from __future__ import annotations

import onnx_ir as ir

from edgespec.export.passes.base import GraphPass, dialect_nodes, replace


class LowerNorm(GraphPass):
    """``standard`` for operators of ONNX itself, which is what compilers for NPUs know."""

    def __init__(self, standard: bool = False) -> None:
        super().__init__()
        self.standard = standard

    def edit(self, graph: ir.Graph) -> bool:
        nodes = list(dialect_nodes(graph, "RMSNorm"))
        for node in nodes:
            attributes = {"epsilon": node.attributes["epsilon"].as_float(), "axis": -1}
            operator = "RMSNormalization" if self.standard else "SimplifiedLayerNormalization"
            replace(graph, node, ir.node(operator, node.inputs, attributes, version=23 if self.standard else None))
        return bool(nodes)
