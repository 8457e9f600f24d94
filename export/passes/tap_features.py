"""Give a target's graph the output ``hidden_states``: what draft heads read, side by side, for every row of the pass.

Needs the ``LayerOutput`` markers. A tap is ``layer.{i}``, what enters decoder layer i, or ``last``, what the head reads: the last
hidden state behind the final norm. The head runs on some of the rows only; the tap is in front of that choice.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from edgespec.errors import UnsupportedModelError, UsageError
from edgespec.export.passes.base import GraphPass, dialect_nodes, is_op

LAST = "last"
NAME = "hidden_states"


def entering(layer: int) -> str:
    """The tap of what enters ``layer``."""
    return f"layer.{layer}"


class TapFeatures(GraphPass):
    def __init__(self, taps: Sequence[str]) -> None:
        super().__init__()
        self.taps = tuple(taps)

    def edit(self, graph: ir.Graph) -> bool:
        marks = {entering(node.attributes["layer"].as_int() + 1): node.outputs[0] for node in dialect_nodes(graph, "LayerOutput")}
        values = []
        for tap in self.taps:
            value = _head_input(graph) if tap == LAST else marks.get(tap)
            if value is None:
                raise UsageError(f"a draft head reads {tap}, and the target has layers 1 to {len(marks) - 1}")
            values.append(value)
        # Joined also if it is one: the output is then a value of its own, which no later pass has to look after.
        joined = ir.node("Concat", values, {"axis": -1})
        (output,) = joined.outputs
        output.name, output.type = NAME, ir.TensorType(ir.DataType.FLOAT)
        widths = [value.shape[-1] if value.shape is not None else None for value in values]
        if not all(isinstance(width, int) for width in widths) or any(len(value.shape or ()) != 3 for value in values):
            raise UnsupportedModelError("the target's hidden states are not one vector for each token, so no draft head can read them")
        shape = values[0].shape
        assert shape is not None
        output.shape = ir.Shape([*shape.dims[:-1], sum(width for width in widths if isinstance(width, int))])
        graph.append(joined)
        graph.outputs.append(output)
        return True


def _head_input(graph: ir.Graph) -> ir.Value:
    """What the rows with logits are chosen from."""
    sources: set[ir.Value | None] = set()
    indices = [next(value for value in graph.inputs if value.name == "logit_rows")]
    while indices:
        for use in tuple(indices.pop().uses()):
            if is_op(use.node, "Gather"):
                sources.add(use.node.inputs[0])
            elif is_op(use.node, "Reshape") or is_op(use.node, "Cast"):
                indices.append(use.node.outputs[0])
    if len(sources) != 1 or None in sources:
        raise UnsupportedModelError("what the target's head reads was not found in its graph, so no draft head can be exported with it")
    (source,) = sources
    assert source is not None
    return source
