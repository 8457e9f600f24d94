"""``weight + constant`` becomes a weight of its own, made when weights are written (Gemma's norms: 1 + weight)."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from edgespec.export.passes.base import GraphPass, fixed_shape, replace_value, standard_nodes
from edgespec.export.recipe import Recipe, get_recipe, weight


class FoldOffsets(GraphPass):
    def edit(self, graph: ir.Graph) -> bool:
        changed = False
        for node in standard_nodes(graph, "Add"):
            found = _weight_and_scalar(node)
            if found is None:
                continue
            source, recipe, scalar = found
            folded = dataclasses.replace(recipe, offset=recipe.offset + scalar)
            name = f"{source.name}+{folded.offset:g}"
            replace_value(node.outputs[0], weight(graph, name, ir.DataType.FLOAT, fixed_shape(source), folded))
            graph.remove(node, safe=True)
            changed = True
        return changed


def _weight_and_scalar(node: ir.Node) -> tuple[ir.Value, Recipe, float] | None:
    for source, other in (node.inputs, node.inputs[::-1]):
        recipe = get_recipe(source)
        tensor = ir.convenience.get_const_tensor(other) if other is not None else None
        if source is not None and recipe is not None and tensor is not None and tensor.size == 1:
            return source, recipe, float(tensor.numpy().reshape(()))
    return None
