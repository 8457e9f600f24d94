"""Merge projections that read the same input into one (q/k/v, gate/up): one larger product and a Split.

Needs ``Linear`` nodes. Only the weights' recipes are joined; the bytes are joined when weights are written.
"""

from __future__ import annotations

import collections
import dataclasses

import onnx_ir as ir

from edgespec.export.passes.base import GraphPass, dialect_nodes, fixed_shape, replace_value
from edgespec.export.recipe import Plan, Recipe, Scheme, get_recipe, weight
from edgespec.export.trace import dialect


class MergeProjections(GraphPass):
    """``plan`` says how weights will be quantised: only those that are alike can be merged."""

    def __init__(self, plan: Plan | Scheme | None = None) -> None:
        super().__init__()
        self.plan = Plan.of(plan)

    def edit(self, graph: ir.Graph) -> bool:
        groups: dict[ir.Value, list[ir.Node]] = collections.defaultdict(list)
        for node in dialect_nodes(graph, "Linear"):
            if node.inputs[0] is not None and get_recipe(node.inputs[1]) is not None:
                groups[node.inputs[0]].append(node)
        changed = False
        for nodes in groups.values():
            alike: dict[tuple[object, ...], list[ir.Node]] = collections.defaultdict(list)
            for node in nodes:
                alike[_kind(node, self.plan)].append(node)
            for kind, same in alike.items():
                if len(same) > 1 and None not in kind:
                    _merge(graph, same)
                    changed = True
        return changed


def _kind(node: ir.Node, plan: Plan) -> tuple[object, ...]:
    """What must be equal in projections that are merged: how weight, and bias where there is one, are made. None where not known."""
    recipes = [get_recipe(value) for value in node.inputs[1:]]
    return tuple(recipe and dataclasses.replace(recipe, sources=(), scheme=plan.of_recipe(recipe)) for recipe in recipes)


def _merge(graph: ir.Graph, nodes: list[ir.Node]) -> None:
    first = nodes[0]
    inputs: list[ir.Value | None] = [first.inputs[0]]
    for index in range(1, len(first.inputs)):
        inputs.append(_joined(graph, [node.inputs[index] for node in nodes]))
    rows = [fixed_shape(node.inputs[1])[0] for node in nodes]
    merged = ir.node("Linear", inputs, domain=dialect.DOMAIN, version=1)
    split = ir.node("Split", [merged.outputs[0]], {"axis": -1, "num_outputs": len(nodes)}, num_outputs=len(nodes))
    if len(set(rows)) > 1:
        sizes = ir.node("Constant", [], {"value_ints": rows})
        split = ir.node("Split", [merged.outputs[0], sizes.outputs[0]], {"axis": -1}, num_outputs=len(nodes))
        graph.insert_before(first, [merged, sizes, split])
    else:
        graph.insert_before(first, [merged, split])
    shape = first.outputs[0].shape
    merged.outputs[0].type = first.outputs[0].type
    if shape is not None:
        merged.outputs[0].shape = ir.Shape([*shape.dims[:-1], sum(rows)])
    for node, part in zip(nodes, split.outputs, strict=True):
        part.type, part.shape = node.outputs[0].type, node.outputs[0].shape
        replace_value(node.outputs[0], part)
        graph.remove(node, safe=True)


def _joined(graph: ir.Graph, values: list[ir.Value | None]) -> ir.Value:
    """One weight whose rows are those of ``values`` in order."""
    recipes: list[Recipe] = []
    for value in values:
        recipe = get_recipe(value)
        assert recipe is not None
        recipes.append(recipe)
    shapes = [fixed_shape(value) for value in values]
    name = "|".join(str(value.name) for value in values if value is not None)
    joined = dataclasses.replace(recipes[0], sources=tuple(source for recipe in recipes for source in recipe.sources))
    return weight(graph, name, ir.DataType.FLOAT, (sum(shape[0] for shape in shapes), *shapes[0][1:]), joined)
