"""A head's first step inside the target's graph: the head's nodes behind the target's, in one ``If``.

A head with a cache reads, in row i, the hidden states of token i and the token after it. For a token of the text that is the next one of
the pass; for the last token and for drafted ones it is what the target itself finds likeliest, which the graph knows. So one pass gives,
for each of its rows, what the head would draft next if the target's own choice becomes the text (docs/drafters.md).

Beside the graph contract of the target (docs/architecture.md):

    next_ids [1, S] int64             the token after each row; -1, in rows with logits only, for the likeliest
    head.past_key_values.{i}.key      the head's buffers, as in its own graph; .value likewise
    head.next_ids [1, S] int64        the tokens that the head took
    head.logits [1, R, Vd] float      for the rows with logits
    head.hidden_states [1, S, H]      what the head's next step reads
    head.present.{i}.key, .value

With ``next_ids`` of no rows the head is left out, and its outputs have none: the pass is that of the target alone.

Both graphs are finished when they come here, and nothing of the target's own nodes changes, hence no bit of its results.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from edgespec.export.passes.base import constant, typed
from edgespec.export.passes.pad_attention import PadAttention
from edgespec.manifest import ModelSpec
from edgespec.runtime.models.features import Columns, columns
from edgespec.runtime.models.fused import NEXT, PREFIX

OWN = ("input_ids", "features", "own_features")
"""Inputs of a head's graph that are made inside; those of the cache have names of their own, and the others are the target's."""
LEAST_BLOCK = 16  # of an argmax in two steps


def with_first_step(folder: Path, target: ModelSpec, head: ModelSpec) -> ModelSpec:
    """The entry of a written ``head`` with a graph of the target that has its first step in it, if it keeps a cache and fits."""
    if not head.layers:
        return head
    name = f"{Path(target.graph).stem}.{Path(head.graph).name}"
    graphs = (folder / target.graph, folder / head.graph)
    done = fuse(*graphs, columns(target, head.reads or ()), folder / name, padded=target.pads_attention)
    return dataclasses.replace(head, fused=name if done else None)


def fuse(target: Path, head: Path, columns: Columns, fused: Path, *, padded: bool = False) -> bool:
    """Write ``fused``, the graph of ``target`` with that of ``head`` in it.

    Args:
        target: a finished graph with the output ``hidden_states``.
        head: a finished graph with a cache.
        columns: of the hidden states, those that the head reads.
        fused: where to write it; beside the others, since it points into the same file of weights.
        padded: attention of the target can be given more rows than there are tokens; then the head's has to take them as well.

    Returns:
        False, and nothing is written, if the head has layers with a window that no layer of the target has: its mask is then not
        among the target's inputs.
    """
    model, other = ir.load(target), ir.load(head)
    graph, inner = model.graph, other.graph
    inputs = {value.name: value for value in graph.inputs}
    shared = [value for value in inner.inputs if value.name not in OWN and not _is_cache(value)]
    if any(value.name not in inputs for value in shared):
        return False
    if padded:
        PadAttention().edit(inner)
    given = typed(NEXT, ir.DataType.INT64, [1, "next"])
    graph.inputs.append(given)
    _take_initializers(graph, inner)
    nodes = _Nodes(graph)
    taken = _next_ids(nodes, given, inputs["logit_rows"], _output(graph, "logits"))
    features = _chosen(nodes, _output(graph, "hidden_states"), columns)
    for value in list(inner.inputs):
        if value.name == "input_ids":
            value.replace_all_uses_with(taken)
        elif value.name == "features":
            value.replace_all_uses_with(features)
        elif value.name == "own_features":
            width = value.shape[2] if value.shape is not None else None
            assert isinstance(width, int)
            value.replace_all_uses_with(constant(graph, f"{PREFIX}no_features", np.zeros((1, 0, width), np.float32)))
        elif _is_cache(value):
            value.name = f"{PREFIX}{value.name}"
            inner.inputs.remove(value)
            graph.inputs.append(value)
        else:
            value.replace_all_uses_with(inputs[value.name])
    results = [taken, *inner.outputs]
    names = [f"{PREFIX}{NEXT}", *(f"{PREFIX}{value.name}" for value in inner.outputs)]
    inner.outputs.clear()
    body = [*nodes.made, *inner]
    inner.remove(list(inner))
    for index, value in enumerate(value for node in body for value in node.outputs if value.name):
        value.name = f"{PREFIX}{index}"  # names of an inner graph must not be those of the outer one
    wanted = _Nodes(graph)
    size = wanted("Size", given)
    condition = wanted("Greater", size, constant(graph, f"{PREFIX}zero", np.array(0, np.int64)))
    choice = ir.Node(
        "",
        "If",
        [condition],
        [ir.AttrGraph("then_branch", _graph("step", body, results)), ir.AttrGraph("else_branch", _nothing(graph, names, results))],
        num_outputs=len(names),
    )
    for name, result, output in zip(names, results, choice.outputs, strict=True):
        output.name, output.type, output.shape = name, ir.TensorType(_dtype(result)), _open_shape(result)
    graph.extend([*wanted.made, choice])
    graph.outputs.extend(choice.outputs)
    ir.save(model, fused)
    return True


class _Nodes:
    """Nodes that are made and belong to no graph yet."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self.made: list[ir.Node] = []

    def __call__(self, op: str, *inputs: ir.Value, **attributes: int) -> ir.Value:
        node = ir.node(op, inputs, attributes)
        node.outputs[0].name = f"{PREFIX}made_{op}_{len(self.made)}"
        self.made.append(node)
        return node.outputs[0]

    def number(self, *values: int) -> ir.Value:
        """A constant [n]."""
        return constant(self._graph, f"{PREFIX}int_{'_'.join(map(str, values))}", np.array(values, np.int64))


def _next_ids(nodes: _Nodes, given: ir.Value, rows: ir.Value, logits: ir.Value) -> ir.Value:
    """The token after each row, [1, S]: what is ``given``, where that is -1 the likeliest one."""
    flat = nodes("Reshape", given, nodes.number(-1))
    of_rows = nodes("Gather", flat, rows, axis=0)
    unknown = nodes("Less", of_rows, nodes.number(0))
    filled = nodes("Where", unknown, _likeliest(nodes, logits), of_rows)
    taken = nodes("Reshape", nodes("ScatterElements", flat, rows, filled, axis=0), nodes.number(1, -1))
    taken.type, taken.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([1, None])
    return taken


def _likeliest(nodes: _Nodes, logits: ir.Value) -> ir.Value:
    """The first of the largest of ``logits`` [1, R, V] of each row, [R]. ONNX Runtime's ArgMax looks at one number after the other; the
    largest of a block is found with vectors, so the block is found first and ArgMax looks into that one alone."""
    width = logits.shape[2] if logits.shape is not None else None
    assert isinstance(width, int)
    block = block_of(width)
    if block is None:
        return nodes("Reshape", nodes("ArgMax", logits, axis=2, keepdims=0), nodes.number(-1))
    blocks = nodes("Reshape", logits, nodes.number(-1, width // block, block))
    largest = nodes("ReduceMax", blocks, nodes.number(2), keepdims=0)
    where = nodes("ArgMax", largest, axis=1, keepdims=1)  # [R, 1]
    inside = nodes("ArgMax", nodes("GatherND", blocks, where, batch_dims=1), axis=1, keepdims=0)
    return nodes("Add", nodes("Mul", nodes("Reshape", where, nodes.number(-1)), nodes.number(block)), inside)


def block_of(width: int) -> int | None:
    """How many of ``width`` numbers a block has, so that blocks and their number are much alike; None if it has no such divisor."""
    blocks = [block for block in range(LEAST_BLOCK, math.isqrt(width) + 1) if width % block == 0]
    return width // blocks[-1] if blocks else None


def _chosen(nodes: _Nodes, hidden: ir.Value, columns: Columns) -> ir.Value:
    if not isinstance(columns, slice):
        return nodes("Gather", hidden, nodes.number(*columns.tolist()), axis=2)
    if hidden.shape is not None and columns.stop - columns.start == hidden.shape[2]:
        return hidden
    return nodes("Slice", hidden, nodes.number(columns.start), nodes.number(columns.stop), nodes.number(2))


def _take_initializers(graph: ir.Graph, inner: ir.Graph) -> None:
    """Give the weights of ``inner`` to ``graph``, which may have some of them."""
    known = {place: value for value in graph.initializers.values() if (place := _place(value)) is not None}
    for value in list(inner.initializers.values()):
        place = _place(value)
        same = known.get(place) if place is not None else None
        inner.initializers.pop(value.name or "")
        if same is not None:
            value.replace_all_uses_with(same)
            continue
        value.name = f"{PREFIX}{value.name}"
        graph.register_initializer(value)


def _place(value: ir.Value) -> tuple[object, ...] | None:
    """Where a weight outside of the graph's file is, as what."""
    tensor = value.const_value
    if not isinstance(tensor, ir.ExternalTensor):
        return None
    return tensor.location, tensor.offset, tensor.length, tensor.dtype, tuple(tensor.shape)


def _nothing(graph: ir.Graph, names: Sequence[str], results: Sequence[ir.Value]) -> ir.Graph:
    """The other branch: caches as they are, and no rows of the rest."""
    pasts = {value.name: value for value in graph.inputs}
    nodes: list[ir.Node] = []
    for index, (name, result) in enumerate(zip(names, results, strict=True)):
        past = pasts.get(name.replace("present.", "past_key_values."))
        if "present." in name and past is not None:
            node = ir.node("Identity", [past])
        else:
            nothing = np.zeros((1, 0, *[dim for dim in _open_shape(result) if isinstance(dim, int)][1:]), _dtype(result).numpy())
            node = ir.node("Identity", [constant(graph, f"{PREFIX}nothing_{index}", nothing)])
        (output,) = node.outputs
        output.name, output.type, output.shape = f"{PREFIX}without_{index}", ir.TensorType(_dtype(result)), _open_shape(result)
        nodes.append(node)
    return _graph("no_step", nodes, [node.outputs[0] for node in nodes])


def _graph(name: str, nodes: Sequence[ir.Node], outputs: Sequence[ir.Value]) -> ir.Graph:
    return ir.Graph([], list(outputs), nodes=list(nodes), name=name)


def _open_shape(value: ir.Value) -> ir.Shape:
    """Of an output of either branch: the number of rows is left open."""
    assert value.shape is not None
    return ir.Shape([dim if isinstance(dim, int) else None for dim in value.shape])


def _dtype(value: ir.Value) -> ir.DataType:
    assert value.dtype is not None
    return value.dtype


def _output(graph: ir.Graph, name: str) -> ir.Value:
    return next(value for value in graph.outputs if value.name == name)


def _is_cache(value: ir.Value) -> bool:
    return (value.name or "").startswith("past_key_values.")
