"""What the passes share: small queries and edits on :mod:`onnx_ir` graphs."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from edgespec.export.trace import dialect

MICROSOFT = "com.microsoft"


class GraphPass(ir.passes.InPlacePass, abc.ABC):
    """A pass that edits ``model.graph`` in place. Subclasses say what they need and leave in their docstring."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        return ir.passes.PassResult(model, modified=self.edit(model.graph))

    @abc.abstractmethod
    def edit(self, graph: ir.Graph) -> bool:
        """Rewrite the graph; true when anything changed."""


def typed(name: str, dtype: ir.DataType, shape: Sequence[int | str | ir.SymbolicDim]) -> ir.Value:
    """A value that a graph can have as an input or output."""
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))


def dialect_nodes(graph: ir.Graph, op: str) -> Iterator[ir.Node]:
    """Nodes of the dialect with this name, safe against edits while iterating."""
    return (node for node in list(graph) if node.domain == dialect.DOMAIN and node.op_type == op)


def standard_nodes(graph: ir.Graph, op: str) -> Iterator[ir.Node]:
    """Nodes of standard ONNX with this name, safe against edits while iterating."""
    return (node for node in list(graph) if node.domain in ("", "ai.onnx") and node.op_type == op)


def is_op(node: ir.Node | None, op: str, domain: str = "") -> bool:
    return node is not None and node.op_type == op and (node.domain == domain or (domain == "" and node.domain == "ai.onnx"))


def static_shape(value: ir.Value | None) -> tuple[int | None, ...] | None:
    """The value's shape with None for dynamic dimensions; None when it is unknown."""
    if value is None or value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else None for dim in value.shape)


def fixed_shape(value: ir.Value | None) -> tuple[int, ...]:
    """The shape of a value that has no dynamic dimension, a weight for example."""
    shape = static_shape(value)
    assert shape is not None
    dims = tuple(dim for dim in shape if dim is not None)
    assert len(dims) == len(shape)
    return dims


def constant(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    """An initializer of ``graph`` with this name and value, made once."""
    if name not in graph.initializers:
        tensor = ir.tensor(array, name=name)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
        graph.register_initializer(value)
    return graph.initializers[name]


def replace(graph: ir.Graph, old: ir.Node, new: ir.Node) -> None:
    """Put ``new`` where ``old`` stands; its outputs take over the uses, names and types of the old ones."""
    graph.insert_before(old, new)
    for before, after in zip(old.outputs, new.outputs, strict=False):
        replace_value(before, after)
    graph.remove(old, safe=True)


def put_behind(graph: ir.Graph, node: ir.Node, new: ir.Node) -> None:
    """Put ``new``, whose first input is the first output of ``node``, between that and all who use it. How many rows the node itself then
    gives is not known."""
    before, after = node.outputs[0], new.outputs[0]
    after.type, after.shape = before.type, before.shape
    before.replace_all_uses_with(after)
    new.replace_input_with(0, before)
    before.shape = None
    graph.insert_after(node, new)


def replace_value(before: ir.Value, after: ir.Value) -> None:
    """Let ``after`` serve every use of ``before``, graph outputs included."""
    if after.type is None:
        after.type = before.type
    if after.shape is None:
        after.shape = before.shape
    if before.is_graph_output():
        name = before.name
        before.name = None
        after.name = name
    before.replace_all_uses_with(after, replace_graph_outputs=True)


def only_user(value: ir.Value) -> ir.Node | None:
    """The one node that reads ``value``; None when there are more, none, or it is a graph output."""
    uses = tuple(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None
