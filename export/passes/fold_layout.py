"""A transpose or reshape of a weight becomes part of how the weight is written (GPT-2's transposed matrices, interleaved experts)."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from edgespec.export.passes.base import GraphPass, fixed_shape, is_op, replace_value
from edgespec.export.recipe import Layout, get_recipe, weight


class FoldLayout(GraphPass):
    def edit(self, graph: ir.Graph) -> bool:
        changed = False
        for node in list(graph):  # in order, so that a chain folds from its weight on
            source = node.inputs[0] if node.inputs else None
            recipe, step = get_recipe(source), _step(node)
            if source is None or recipe is None or step is None:
                continue
            shape = fixed_shape(source)
            after = tuple(shape[axis] for axis in step.dims) if step.op == "transpose" else step.dims
            name = f"{source.name}:{step.op}_{'_'.join(str(dim) for dim in step.dims)}"
            folded = dataclasses.replace(recipe, layout=(*recipe.layout, step))
            replace_value(node.outputs[0], weight(graph, name, ir.DataType.FLOAT, after, folded))
            graph.remove(node, safe=True)
            changed = True
        return changed


def _step(node: ir.Node) -> Layout | None:
    """What ``node`` does to the layout of its first input, None when it does more or that is not known."""
    if is_op(node, "Transpose"):
        perm = node.attributes.get("perm")
        return Layout("transpose", tuple(perm.as_ints())) if perm is not None else None
    if is_op(node, "Reshape"):
        shape = node.outputs[0].shape
        if shape is not None and all(isinstance(dim, int) for dim in shape):
            return Layout("reshape", tuple(int(dim) for dim in shape.numpy()))
    return None
