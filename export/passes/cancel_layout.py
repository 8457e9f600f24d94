"""Remove transposes and reshapes that undo each other around attention and rotary embedding.

1. ``Transpose(Transpose(x))`` whose permutations compose to the identity is x.
2. ``Reshape(Reshape(x))`` is one Reshape.
3. ``Reshape(x)`` to the shape that x has is x; so is that of a vector to a vector.
4. ``RMSNorm(Transpose(x))`` is ``Transpose(RMSNorm(x))`` while the last axis stays last, which lets 1 see the transpose.
"""

from __future__ import annotations

import onnx_ir as ir

from edgespec.export.passes.base import GraphPass, dialect_nodes, is_op, only_user, replace_value, standard_nodes, static_shape


class CancelLayout(GraphPass):
    def edit(self, graph: ir.Graph) -> bool:
        changed, again = False, True
        while again:
            again = any([_norms(graph), _transposes(graph), _reshapes(graph)])
            changed |= again
        return changed


def _transposes(graph: ir.Graph) -> bool:
    changed = False
    for node in standard_nodes(graph, "Transpose"):
        inner = node.inputs[0].producer() if node.inputs[0] is not None else None
        if inner is None or not is_op(inner, "Transpose"):
            continue
        first, second = inner.attributes["perm"].as_ints(), node.attributes["perm"].as_ints()
        source = inner.inputs[0]
        if source is not None and [first[axis] for axis in second] == list(range(len(first))) and not node.outputs[0].is_graph_output():
            replace_value(node.outputs[0], source)
            graph.remove(node, safe=True)
            changed = True
    return changed


def _reshapes(graph: ir.Graph) -> bool:
    changed = False
    for node in standard_nodes(graph, "Reshape"):
        source = node.inputs[0]
        assert source is not None
        inner = source.producer()
        if is_op(inner, "Reshape") and ir.convenience.get_const_tensor(node.inputs[1]) is not None:  # type: ignore[arg-type]
            assert inner is not None
            source = inner.inputs[0]
            assert source is not None
            node.replace_input_with(0, source)
            changed = True
        shape, known = static_shape(node.outputs[0]), static_shape(source)
        same = shape is not None and shape == known and shape.count(None) <= 1
        if (same or (known is not None and len(known) == 1 and _flattens(node))) and not node.outputs[0].is_graph_output():
            replace_value(node.outputs[0], source)
            graph.remove(node, safe=True)
            changed = True
    return changed


def _flattens(node: ir.Node) -> bool:
    """Whether a Reshape makes a vector of whatever it is given."""
    shape = ir.convenience.get_const_tensor(node.inputs[1])  # type: ignore[arg-type]
    return shape is not None and shape.numpy().tolist() == [-1]


def _norms(graph: ir.Graph) -> bool:
    changed = False
    for norm in dialect_nodes(graph, "RMSNorm"):
        turned = norm.inputs[0]
        inner = turned.producer() if turned is not None else None
        if turned is None or inner is None or not is_op(inner, "Transpose") or only_user(turned) is not norm:
            continue
        perm, source = inner.attributes["perm"].as_ints(), inner.inputs[0]
        if perm[-1] != len(perm) - 1 or source is None:
            continue
        norm.replace_input_with(0, source)
        result = norm.outputs[0]
        users = [(use.node, use.idx) for use in result.uses()]
        after = ir.node("Transpose", [result], {"perm": perm})
        after.outputs[0].shape, after.outputs[0].type = result.shape, result.type
        graph.insert_after(norm, after)
        for user, index in users:
            user.replace_input_with(index, after.outputs[0])
        result.shape = source.shape
        graph.remove(inner, safe=True)
        changed = True
    return changed
