"""Reshape to a constant shape where all but one dimension is known, in place of a shape put together in the graph."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgespec.export.passes.base import GraphPass, constant, standard_nodes, static_shape


class ConstantShapes(GraphPass):
    def edit(self, graph: ir.Graph) -> bool:
        changed = False
        for node in standard_nodes(graph, "Reshape"):
            shape = static_shape(node.outputs[0])
            if shape is None or shape.count(None) > 1 or 0 in shape:
                continue
            dims = [-1 if dim is None else dim for dim in shape]
            name = "shape_" + "_".join("S" if dim == -1 else str(dim) for dim in dims)
            node.replace_input_with(1, constant(graph, name, np.array(dims, np.int64)))
            changed = True
        return changed
