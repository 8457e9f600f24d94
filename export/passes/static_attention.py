"""``Attention`` of the dialect becomes ``Attention`` of opset 23 over all rows of the cache and the new ones behind them.

For graphs of fixed shapes: the past is an input of C rows of which a mask hides those that are not valid, and only the new
rows are outputs. Whoever runs the graph copies what is accepted; a rejected row was never in the cache.
"""

from __future__ import annotations

import onnx_ir as ir

from edgespec.errors import UnsupportedModelError
from edgespec.export.passes.base import GraphPass, dialect_nodes, replace_value, typed


class StaticAttention(GraphPass):
    """Needs a graph that :func:`check_attention` lets pass, with ``Attention`` nodes on ``[1, heads, S, D]``. Adds the masks
    ``[1, 1, S, T]`` as graph inputs, T = C + S."""

    def edit(self, graph: ir.Graph) -> bool:
        nodes = list(dialect_nodes(graph, "Attention"))
        tokens = graph.inputs[0].shape[1] if graph.inputs[0].shape is not None else "S"
        windows = sorted({node.attributes["window"].as_int() for node in nodes} | {0})
        masks = {window: _mask(window, tokens) for window in windows}
        graph.inputs[2:2] = [*masks.values()]
        for node in nodes:
            _lower(graph, node, masks[node.attributes["window"].as_int()])
        return True


def check_attention(graph: ir.Graph) -> None:
    """Refuse a traced model whose attention this pass cannot express.

    Raises:
        UnsupportedModelError: names the layer.
    """
    for node in dialect_nodes(graph, "SharedAttention"):
        raise _unsupported(node, "takes keys and values from another layer")
    for node in dialect_nodes(graph, "Attention"):
        if len(node.inputs) > 5:
            raise _unsupported(node, "has attention sinks")
        if node.attributes["softcap"].as_float():
            raise _unsupported(node, "caps its attention scores")


def _unsupported(node: ir.Node, what: str) -> UnsupportedModelError:
    layer = node.attributes["layer"].as_int()
    return UnsupportedModelError(f"--profile npu: layer {layer} {what}, which graphs of fixed shapes do not have; leave the profile out")


def _mask(window: int, tokens: int | str | ir.SymbolicDim) -> ir.Value:
    name = f"attention_bias_window_{window}" if window else "attention_bias"
    return typed(name, ir.DataType.FLOAT, [1, 1, tokens, "T"])


def _lower(graph: ir.Graph, node: ir.Node, mask: ir.Value) -> None:
    query, key, value, past_key, past_value = node.inputs
    keys = ir.node("Concat", [past_key, key], {"axis": 2})
    values = ir.node("Concat", [past_value, value], {"axis": 2})
    mixed = ir.node(
        "Attention", [query, keys.outputs[0], values.outputs[0], mask], {"scale": node.attributes["scale"].as_float()}, version=23
    )
    turned = ir.node("Transpose", [mixed.outputs[0]], {"perm": (0, 2, 1, 3)})
    graph.insert_before(node, [keys, values, mixed, turned])
    assert key is not None
    assert value is not None
    for before, after in zip(node.outputs, (turned.outputs[0], key, value), strict=True):
        after.shape = before.shape if after is turned.outputs[0] else after.shape
        replace_value(before, after)
    graph.remove(node, safe=True)
