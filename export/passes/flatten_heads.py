"""Bring ``Rotary`` and ``Attention`` from transformers' ``[1, heads, S, D]`` to the kernels' ``[1, S, heads * D]``.

The transposes and reshapes that this puts around them mostly meet the model's own, and CancelLayout removes both.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgespec.export.passes.base import GraphPass, constant, dialect_nodes, static_shape
from edgespec.export.trace import dialect

SWAP = (0, 2, 1, 3)


class FlattenHeads(GraphPass):
    def edit(self, graph: ir.Graph) -> bool:
        rotaries, attentions = list(dialect_nodes(graph, "Rotary")), list(dialect_nodes(graph, "Attention"))
        shared = list(dialect_nodes(graph, "SharedAttention"))
        for node in rotaries:
            _rotary(graph, node)
        for node in attentions:
            _attention(graph, node)
        for node in shared:
            _shared_attention(graph, node)
        return bool(rotaries or attentions)


def _rotary(graph: ir.Graph, node: ir.Node) -> None:
    x = node.inputs[0]
    assert x is not None
    heads, dim = _heads_and_dim(x)
    flat = _flatten(graph, node, x)
    turned = ir.node("Rotary", [flat, *node.inputs[1:]], {"num_heads": heads}, domain=dialect.DOMAIN, version=1)
    turned.attributes.update(node.attributes)
    turned.outputs[0].shape, turned.outputs[0].type = flat.shape, flat.type
    graph.insert_before(node, turned)
    split = _reshape(graph, node, turned.outputs[0], [1, -1, heads, dim])
    back = _transpose(graph, node, split)
    node.outputs[0].replace_all_uses_with(back)
    graph.remove(node, safe=True)


def _attention(graph: ir.Graph, node: ir.Node) -> None:
    query, key, value = node.inputs[:3]
    assert query is not None
    assert key is not None
    assert value is not None
    heads, kv_heads, dim = _heads_and_dim(query)[0], _heads_and_dim(key)[0], _heads_and_dim(value)[1]
    flat = [_flatten(graph, node, x) for x in (query, key, value)]
    new = ir.node("Attention", [*flat, *node.inputs[3:]], domain=dialect.DOMAIN, version=1, num_outputs=3)
    new.attributes.update(node.attributes)
    new.attributes["num_heads"] = ir.AttrInt64("num_heads", heads)
    new.attributes["kv_num_heads"] = ir.AttrInt64("kv_num_heads", kv_heads)
    mixed = new.outputs[0]
    mixed.type, mixed.shape = query.type, _shape(query, [heads * dim])
    graph.insert_before(node, new)
    split = _reshape(graph, node, mixed, [1, -1, heads, dim])
    node.outputs[0].replace_all_uses_with(split)
    for before, after in zip(node.outputs[1:], new.outputs[1:], strict=True):
        name = before.name
        after.type, after.shape = before.type, before.shape
        before.name = None
        before.replace_all_uses_with(after, replace_graph_outputs=True)
        after.name = name
    graph.remove(node, safe=True)


def _shared_attention(graph: ir.Graph, node: ir.Node) -> None:
    query, present_value = node.inputs[0], node.inputs[2]
    assert query is not None
    assert present_value is not None
    heads, (kv_heads, dim) = _heads_and_dim(query)[0], _heads_and_dim(present_value)
    new = ir.node("SharedAttention", [_flatten(graph, node, query), *node.inputs[1:]], domain=dialect.DOMAIN, version=1)
    new.attributes.update(node.attributes)
    new.attributes["num_heads"] = ir.AttrInt64("num_heads", heads)
    new.attributes["kv_num_heads"] = ir.AttrInt64("kv_num_heads", kv_heads)
    new.outputs[0].type, new.outputs[0].shape = query.type, _shape(query, [heads * dim])
    graph.insert_before(node, new)
    node.outputs[0].replace_all_uses_with(_reshape(graph, node, new.outputs[0], [1, -1, heads, dim]))
    graph.remove(node, safe=True)


def _heads_and_dim(x: ir.Value) -> tuple[int, int]:
    shape = static_shape(x)
    assert shape is not None
    heads, dim = shape[1], shape[3]
    assert heads is not None
    assert dim is not None
    return heads, dim


def _shape(x: ir.Value, last: list[int]) -> ir.Shape:
    """``[1, S, *last]`` with the S of x ``[1, heads, S, D]``."""
    assert x.shape is not None
    return ir.Shape([x.shape[0], x.shape[2], *last])


def _flatten(graph: ir.Graph, before: ir.Node, x: ir.Value) -> ir.Value:
    heads, dim = _heads_and_dim(x)
    turned = _transpose(graph, before, x)
    return _reshape(graph, before, turned, [1, -1, heads * dim])


def _transpose(graph: ir.Graph, before: ir.Node, x: ir.Value) -> ir.Value:
    node = ir.node("Transpose", [x], {"perm": SWAP})
    assert x.shape is not None
    node.outputs[0].type, node.outputs[0].shape = x.type, ir.Shape([x.shape[axis] for axis in SWAP])
    graph.insert_before(before, node)
    return node.outputs[0]


def _reshape(graph: ir.Graph, before: ir.Node, x: ir.Value, dims: list[int]) -> ir.Value:
    """Reshape to ``[1, S, ...]``; S is the second dimension of x."""
    name = "shape_" + "_".join("S" if dim == -1 else str(dim) for dim in dims)
    node = ir.node("Reshape", [x, constant(graph, name, np.array(dims, np.int64))])
    assert x.shape is not None
    node.outputs[0].type, node.outputs[0].shape = x.type, ir.Shape([x.shape[1] if dim == -1 else dim for dim in dims])
    graph.insert_before(before, node)
    return node.outputs[0]
