"""Names for values without one, the same for every graph that was made in the same way."""

from __future__ import annotations

import onnx_ir as ir

from edgespec.export.passes.base import GraphPass


class NameValues(GraphPass):
    """So that what is measured of a value of one graph is known of the same value in graphs of other sizes."""

    def edit(self, graph: ir.Graph) -> bool:
        for index, node in enumerate(graph):
            for number, value in enumerate(node.outputs):
                if not value.is_graph_output():
                    value.name = f"{node.op_type}.{index}.{number}"
        return True
