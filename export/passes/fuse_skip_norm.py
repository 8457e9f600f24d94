"""``RMSNorm(a + b)`` becomes one operator that gives the norm and the sum (the residual stream goes on from there).

Needs ``RMSNorm`` nodes; leaves ``SkipSimplifiedLayerNormalization`` of com.microsoft. A sum of two tensors of different
shape is left alone: the operator does not broadcast.
"""

from __future__ import annotations

import onnx_ir as ir

from edgespec.export.passes.base import MICROSOFT, GraphPass, dialect_nodes, is_op, replace_value


class FuseSkipNorm(GraphPass):
    def edit(self, graph: ir.Graph) -> bool:
        changed = False
        for norm in dialect_nodes(graph, "RMSNorm"):
            source = norm.inputs[0]
            add = source.producer() if source is not None else None
            if add is None or not is_op(add, "Add"):
                continue
            left, right = add.inputs
            if left is None or right is None or left.shape is None or left.shape != right.shape or len(left.shape) != 3:
                continue
            fused = ir.node(
                "SkipSimplifiedLayerNormalization",
                [left, right, norm.inputs[1]],
                {"epsilon": norm.attributes["epsilon"].as_float()},
                domain=MICROSOFT,
                version=1,
                num_outputs=4,
            )
            graph.insert_before(norm, fused)
            total = fused.outputs[3]
            total.type, total.shape = add.outputs[0].type, add.outputs[0].shape
            replace_value(norm.outputs[0], fused.outputs[0])
            graph.remove(norm, safe=True)
            replace_value(add.outputs[0], total)
            graph.remove(add, safe=True)
            # The operator's second and third outputs are for training and stay unnamed.
            fused.outputs[1].name = ""
            fused.outputs[2].name = ""
            changed = True
        return changed
