"""16-bit whole numbers in place of float activations: QuantizeLinear and DequantizeLinear around operators, which is the form in
which compilers for NPUs take integer models.

A value's scale comes from the range that calibration found for it (:func:`edgespec.export.activations.activation_ranges`), twice as
wide to be safe: of 16 bits that leaves 15. What only moves numbers, as a Transpose or the join of a cache with new rows, has one scale
on both sides. The cache itself is of such numbers, in and out; token ids, masks and logits stay what they are for the host. An
embedding that is quantised, which no NPU takes, stays in front as it is.

Language models have a few activations that are thousands of times as large as all others, in the stream that the layers add to (Sun et
al. 2024, Massive Activations in Large Language Models). One scale for such a value leaves nothing of the others, so it stays float, and
with it what computes only with it; products with weights have norms in front of them, and so are not among these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from edgespec.export.passes.base import GraphPass, constant, fixed_shape
from edgespec.export.quantise.qdq import whole_parts, whole_range
from edgespec.export.recipe import WHOLE, get_recipe, weight


@dataclasses.dataclass(frozen=True)
class Seen:
    """Of a value: the smallest and largest number, and the mean magnitude."""

    low: float
    high: float
    mean: float


Ranges = Mapping[str, Seen]
"""What was seen of each float value, by its name."""

ROOM = 2.0
COARSE = 1 / 32  # of the mean magnitude: larger steps leave a value float
MASKED = (-10_000.0, 0.0)  # of an attention bias, which has no numbers in between
MOVES = {"Transpose", "Reshape", "Split", "Concat", "Slice", "Squeeze", "Unsqueeze", "Expand", "Identity", "Gather"}
WEIGHTS = {"DequantizeLinear", "GatherBlockQuantized"}  # operators whose floats are scales
NUMBERS = ir.DataType.UINT16
VERSION = 23


class QuantiseActivations(GraphPass):
    """Needs the finished graph with values named by ``NameValues``. Without ``ranges`` it changes nothing."""

    def __init__(self, ranges: Ranges) -> None:
        super().__init__()
        self.ranges = ranges

    def edit(self, graph: ir.Graph) -> bool:
        if not self.ranges:
            return False
        quantise = _Quantising(graph, self.ranges)
        for value in list(graph.initializers.values()):
            quantise.constant(value)
        for value in list(graph.inputs):
            quantise.input(value)
        for node in list(graph):
            for value in node.outputs:
                quantise.result(node, value)
        return True


class _Quantising:
    """One graph while its values are replaced. The scales of groups are settled first, while the graph is still what it was."""

    def __init__(self, graph: ir.Graph, ranges: Ranges) -> None:
        self._graph = graph
        self._first = graph[0]
        groups = _Groups()
        for node in graph:
            if node.op_type in MOVES:
                groups.join([value for value in (*node.inputs, *node.outputs) if value is not None and _is_float(value, ranges)])
        found: dict[ir.Value, tuple[float, float]] = {}
        means: dict[ir.Value, float] = {}
        for value in _values(graph):
            first = groups.first(value)
            if (span := _range(value, ranges)) is not None:
                low, high = found.get(first, span)
                found[first] = min(low, span[0]), max(high, span[1])
            if (seen := ranges.get(str(value.name))) is not None:
                # Rows of the cache are whole numbers whatever it costs.
                needed = float("inf") if str(value.name).startswith("present.") else seen.mean
                means[first] = max(means.get(first, 0.0), needed)
        fine = {first: span for first, span in found.items() if whole_range(*span)[0] <= COARSE * means.get(first, float("inf"))}
        self._spans = {value: fine.get(groups.first(value)) for value in _values(graph)}

    def constant(self, value: ir.Value) -> None:
        """A float initializer as whole numbers, for all who compute with it."""
        users = [(use.node, use.idx) for use in value.uses() if use.node.op_type not in WEIGHTS and self._has_whole_inputs(use.node)]
        if value.dtype != ir.DataType.FLOAT or not users:
            return
        recipe = get_recipe(value)
        if recipe is None:
            assert value.const_value is not None
            low, high = self._spans[value] or (0.0, 0.0)
            parts = whole_parts(np.asarray(value.const_value.numpy()), low, high)
            inputs = [constant(self._graph, f"{value.name}.{part}", array) for part, array in parts.items()]
        elif all(node.op_type in MOVES for node, _ in users):
            return  # a table of floats that is looked up, or a matrix of floats that is turned: a weight
        else:
            types = {"data": (NUMBERS, fixed_shape(value)), "scales": (ir.DataType.FLOAT, ()), "zero_points": (NUMBERS, ())}
            inputs = [
                weight(self._graph, f"{value.name}.{part}", dtype, shape, recipe.quantised(WHOLE, part))
                for part, (dtype, shape) in types.items()
            ]
        back = ir.node("DequantizeLinear", inputs, version=VERSION)
        self._graph.insert_before(self._first, back)
        for node, index in users:
            node.replace_input_with(index, back.outputs[0])

    def _has_whole_inputs(self, node: ir.Node) -> bool:
        """Or is about to have them. A table that is looked up has none, and its rows are what counts."""
        values = [value for value in node.inputs if value is not None and not value.is_initializer()]
        return any(self._spans[value] for value in (values if node.op_type != "Gather" else node.outputs))

    def input(self, value: ir.Value) -> None:
        """The cache comes in whole numbers, a mask in floats."""
        span = self._spans[value]
        if value.dtype != ir.DataType.FLOAT or span is None:
            return
        users = [(use.node, use.idx) for use in value.uses()]
        if str(value.name).startswith("past_key_values."):
            value.type = ir.TensorType(NUMBERS)
            nodes = [self._back(value, span)]
        else:
            nodes = self._there_and_back(value, span)
        self._graph.insert_before(self._first, nodes)
        for node, index in users:
            node.replace_input_with(index, nodes[-1].outputs[0])

    def result(self, node: ir.Node, value: ir.Value) -> None:
        """What an operator computes; an output of the graph keeps its name."""
        span = self._spans.get(value)  # nothing is known of what has been put in
        if span is None:
            return
        users = [(use.node, use.idx) for use in value.uses()]
        there, back = self._there_and_back(value, span)
        self._graph.insert_after(node, [there, back])
        for user, index in users:
            user.replace_input_with(index, back.outputs[0])
        for index, output in enumerate(self._graph.outputs):
            if output is value:
                name, value.name = value.name, f"{value.name}.float"
                self._graph.outputs[index] = there.outputs[0] if str(name).startswith("present.") else back.outputs[0]
                self._graph.outputs[index].name = name
                self._graph.outputs[index].shape = value.shape

    def _there_and_back(self, value: ir.Value, span: tuple[float, float]) -> list[ir.Node]:
        there = ir.node("QuantizeLinear", [value, *self._scale(span)], version=VERSION)
        there.outputs[0].type = ir.TensorType(NUMBERS)
        return [there, self._back(there.outputs[0], span)]

    def _back(self, value: ir.Value, span: tuple[float, float]) -> ir.Node:
        back = ir.node("DequantizeLinear", [value, *self._scale(span)], version=VERSION)
        back.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        return back

    def _scale(self, span: tuple[float, float]) -> list[ir.Value]:
        scale, zero = whole_range(*span)
        name = f"scale.{scale:.9g}.{zero}"
        return [
            constant(self._graph, name, np.array(scale, np.float32)),
            constant(self._graph, f"{name}.zero", np.array(zero, np.uint16)),
        ]


class _Groups:
    """Values that have one scale."""

    def __init__(self) -> None:
        self._before: dict[ir.Value, ir.Value] = {}

    def first(self, value: ir.Value) -> ir.Value:
        while value in self._before:
            value = self._before[value]
        return value

    def join(self, values: list[ir.Value]) -> None:
        for value in values[1:]:
            if self.first(value) is not self.first(values[0]):
                self._before[self.first(value)] = self.first(values[0])


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.initializers.values()
    yield from graph.inputs
    for node in graph:
        yield from node.outputs


def _is_float(value: ir.Value, ranges: Ranges) -> bool:
    if value.producer() is not None:
        return value.name in ranges
    return value.dtype == ir.DataType.FLOAT and get_recipe(value) is None


def _range(value: ir.Value, ranges: Ranges) -> tuple[float, float] | None:
    """What is known of a value by itself."""
    if value.is_graph_input():
        return MASKED if str(value.name).startswith("attention_bias") else None
    if value.is_initializer():
        if not _is_float(value, ranges) or value.const_value is None:
            return None
        array = np.asarray(value.const_value.numpy())
        return (float(array.min()), float(array.max())) if array.size else None
    found = ranges.get(str(value.name))
    return None if found is None else (ROOM * found.low, ROOM * found.high)
