"""Remove the ``LayerOutput`` markers once nothing has to be cut or tapped any more."""

from __future__ import annotations

import onnx_ir as ir

from edgespec.export.passes.base import GraphPass, dialect_nodes, replace_value


class RemoveMarkers(GraphPass):
    def edit(self, graph: ir.Graph) -> bool:
        nodes = list(dialect_nodes(graph, "LayerOutput"))
        for node in nodes:
            source = node.inputs[0]
            assert source is not None
            replace_value(node.outputs[0], source)
            graph.remove(node, safe=True)
        return bool(nodes)
