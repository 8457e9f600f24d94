"""``Rows`` of the dialect becomes ``Concat``: either input may have no rows, which a traced concatenation could not say."""

from __future__ import annotations

import onnx_ir as ir

from edgespec.export.passes.base import GraphPass, dialect_nodes, replace


class LowerRows(GraphPass):
    def edit(self, graph: ir.Graph) -> bool:
        nodes = list(dialect_nodes(graph, "Rows"))
        for node in nodes:
            replace(graph, node, ir.node("Concat", node.inputs, {"axis": 1}))
        return bool(nodes)
