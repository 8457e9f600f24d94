"""``RMSNorm`` of the dialect becomes ``SimplifiedLayerNormalization``, which ONNX Runtime has on every provider of its own, or
``RMSNormalization`` of opset 23."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgespec.export.passes.base import GraphPass, constant, dialect_nodes, replace, static_shape


class LowerNorm(GraphPass):
    """``standard`` for operators of ONNX itself, which is what compilers for NPUs know, on three axes at most."""

    def __init__(self, standard: bool = False) -> None:
        super().__init__()
        self.standard = standard

    def edit(self, graph: ir.Graph) -> bool:
        nodes = list(dialect_nodes(graph, "RMSNorm"))
        for node in nodes:
            attributes = {"epsilon": node.attributes["epsilon"].as_float(), "axis": -1}
            if not self.standard:
                replace(graph, node, ir.node("SimplifiedLayerNormalization", node.inputs, attributes))
                continue
            x, weight = node.inputs
            shape = static_shape(x)
            assert shape is not None
            if len(shape) != 4:
                replace(graph, node, ir.node("RMSNormalization", [x, weight], attributes, version=23))
                continue
            # Norms of heads. Qualcomm's HTP emulator (2.7) computes nonsense for [1, S, heads, D] from the ninth token on.
            heads, dim = shape[2:]
            flat = constant(graph, f"shape_1_S_{dim}", np.array([1, -1, dim], np.int64))
            whole = constant(graph, f"shape_1_S_{heads}_{dim}", np.array([1, -1, heads, dim], np.int64))
            joined = ir.node("Reshape", [x, flat])
            norm = ir.node("RMSNormalization", [joined.outputs[0], weight], attributes, version=23)
            graph.insert_before(node, [joined, norm])
            replace(graph, node, ir.node("Reshape", [norm.outputs[0], whole]))
        return bool(nodes)
