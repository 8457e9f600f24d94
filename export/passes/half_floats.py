"""16-bit floats in place of 32-bit ones: activations, cache and attention bias. Logits and hidden states leave as 32-bit floats.

Weights stay as they are in the file, which other profiles share: a Cast behind each makes it 16 bits wide once, when the graph is
loaded. Whatever is computed from positions alone stays in 32 bits, since 16 have no whole numbers above 2,048.

Needs a graph that is lowered, without a mixture of experts (:func:`check_half`).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgespec.errors import UnsupportedModelError
from edgespec.export.passes.base import GraphPass, constant, dialect_nodes, is_op
from edgespec.export.recipe import get_recipe

FLOAT, HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16
LARGEST = float(np.finfo(np.float16).max)


class HalfFloats(GraphPass):
    def edit(self, graph: ir.Graph) -> bool:
        exact = _from_positions(graph)
        first = graph[0]
        for value in list(graph.initializers.values()):
            if value.dtype == FLOAT:
                users = [(use.node, use.idx) for use in value.uses() if use.node not in exact]
                _give(users, _half(graph, value, first) if users else value)
        for node in exact:
            for output in node.outputs:
                users = [(use.node, use.idx) for use in output.uses() if use.node not in exact]
                if users and output.dtype in (FLOAT, None):
                    _give(users, _cast(graph, output, HALF, after=node))
        for value in graph.inputs:
            if value.dtype == FLOAT:
                value.type = ir.TensorType(HALF)
        for node in [node for node in graph if node not in exact]:
            _retype(node)
        for index, value in enumerate(graph.outputs):
            if value.dtype == FLOAT and _is_cache(value):
                value.type = ir.TensorType(HALF)
            elif value.dtype == FLOAT:
                _widen(graph, index)
        return True


def check_half(graph: ir.Graph) -> None:
    """Refuse a traced model that cannot be computed in 16 bits.

    Raises:
        UnsupportedModelError: it is a mixture of experts.
    """
    for _ in dialect_nodes(graph, "Experts"):
        raise UnsupportedModelError("--profile cuda: the router of a mixture of experts needs 32-bit floats; leave the profile out")


def _from_positions(graph: ir.Graph) -> set[ir.Node]:
    """Nodes that compute from position_ids and constants alone."""
    known = {value for value in graph.inputs if value.name == "position_ids"}
    found: set[ir.Node] = set()
    for node in graph:
        varying = [value for value in node.inputs if value is not None and not value.is_initializer()]
        if varying and all(value in known for value in varying):
            found.add(node)
            known.update(node.outputs)
    return found


def _half(graph: ir.Graph, value: ir.Value, first: ir.Node) -> ir.Value:
    """A weight or constant in 16 bits."""
    if get_recipe(value) is not None:
        return _cast(graph, value, HALF, before=first)
    assert value.const_value is not None
    return constant(graph, f"{value.name}_half", np.clip(value.const_value.numpy(), -LARGEST, LARGEST).astype(np.float16))


def _cast(graph: ir.Graph, value: ir.Value, to: ir.DataType, *, before: ir.Node | None = None, after: ir.Node | None = None) -> ir.Value:
    node = ir.node("Cast", [value], {"to": to})
    node.outputs[0].type, node.outputs[0].shape = ir.TensorType(to), value.shape
    if after is not None:
        graph.insert_after(after, node)
    else:
        assert before is not None
        graph.insert_before(before, node)
    return node.outputs[0]


def _give(users: list[tuple[ir.Node, int]], value: ir.Value) -> None:
    for node, index in users:
        node.replace_input_with(index, value)


def _retype(node: ir.Node) -> None:
    """Types that a node states itself; those of other results follow from its inputs."""
    if is_op(node, "Cast") and node.attributes["to"].as_int() == FLOAT and node.inputs[0] is not None:
        node.attributes["to"] = ir.AttrInt64("to", HALF)
    if is_op(node, "ConstantOfShape") and (value := node.attributes.get("value")) is None:
        node.attributes["value"] = ir.AttrTensor("value", ir.tensor(np.zeros(1, np.float16)))
    elif is_op(node, "ConstantOfShape") and value is not None and value.as_tensor().dtype == FLOAT:
        node.attributes["value"] = ir.AttrTensor("value", ir.tensor(value.as_tensor().numpy().astype(np.float16)))
    for output in node.outputs:
        if output.dtype == FLOAT and not output.is_graph_output():
            output.type = ir.TensorType(HALF)


def _is_cache(value: ir.Value) -> bool:
    return str(value.name).startswith("present.")


def _widen(graph: ir.Graph, index: int) -> None:
    """Let an output of the graph be 32 bits wide."""
    value = graph.outputs[index]
    node = value.producer()
    assert node is not None
    name, value.name = value.name, f"{value.name}_half"
    value.type = ir.TensorType(HALF)
    wide = _cast(graph, value, FLOAT, after=node)
    wide.name = name
    graph.outputs[index] = wide
