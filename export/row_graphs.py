"""Two small graphs that handle rows of a KV cache where it is, for caches in a device's own memory.

    take   past_key_values.{i}.*, rows [n]                             -> taken.{i}.* [1, H, n, D]
    put    past_key_values.{i}.*, given.{i}.*, places_{H} [1, H, n, 3] -> present.{i}.*, to be bound to the past

``places_{H}`` are batch, head and row of each row that is written, one input for each number of heads that layers have.
"""

from __future__ import annotations

import onnx_ir as ir

from edgespec.export.passes.base import typed

OPSET = 21


def take_graph(graph: ir.Graph) -> ir.Model:
    """For the cache that ``graph`` has among its inputs."""
    rows = typed("rows", ir.DataType.INT64, ["n"])
    caches, nodes = _caches(graph), []
    for cache in caches:
        node = ir.node("Gather", [cache, rows], {"axis": 2})
        _name(node, cache, "taken", "n")
        nodes.append(node)
    return _model("take", [*caches, rows], nodes)


def put_graph(graph: ir.Graph) -> ir.Model:
    """For the cache that ``graph`` has among its inputs."""
    places: dict[object, ir.Value] = {}
    caches, given, nodes = _caches(graph), [], []
    for cache in caches:
        assert cache.shape is not None
        heads = cache.shape[1]
        place = places.setdefault(heads, typed(f"places_{heads}", ir.DataType.INT64, [1, heads, "n", 3]))
        assert cache.dtype is not None
        given.append(typed(_other(cache, "given"), cache.dtype, [1, heads, "n", cache.shape[3]]))
        node = ir.node("ScatterND", [cache, place, given[-1]])
        _name(node, cache, "present", "C")
        nodes.append(node)
    return _model("put", [*caches, *given, *places.values()], nodes)


def _caches(graph: ir.Graph) -> list[ir.Value]:
    found = []
    for value in graph.inputs:
        if str(value.name).startswith("past_key_values."):
            assert value.shape is not None
            assert value.dtype is not None
            found.append(typed(str(value.name), value.dtype, [1, value.shape[1], "C", value.shape[3]]))
    return found


def _other(cache: ir.Value, kind: str) -> str:
    return str(cache.name).replace("past_key_values", kind)


def _name(node: ir.Node, cache: ir.Value, kind: str, rows: str) -> None:
    assert cache.shape is not None
    output = node.outputs[0]
    output.name, output.type = _other(cache, kind), cache.type
    output.shape = ir.Shape([1, cache.shape[1], rows, cache.shape[3]])


def _model(name: str, inputs: list[ir.Value], nodes: list[ir.Node]) -> ir.Model:
    outputs = [node.outputs[0] for node in nodes]
    graph = ir.Graph(inputs, outputs, nodes=nodes, opset_imports={"": OPSET}, name=name)
    return ir.Model(graph, ir_version=10)
