"""Give a graph fixed shapes: S new tokens, R rows with logits, C rows of cache."""

from __future__ import annotations

import onnx_ir as ir

from edgespec.export.passes.base import GraphPass


class FixShapes(GraphPass):
    """``width`` is S, ``rows`` R and ``capacity`` C. Values inside the graph are left without shapes, for ONNX Runtime to infer."""

    def __init__(self, width: int, rows: int, capacity: int) -> None:
        super().__init__()
        self.width = width
        self.rows = rows
        self.capacity = capacity

    def edit(self, graph: ir.Graph) -> bool:
        sizes = {"T": self.capacity + self.width}
        for value in graph.inputs:
            axis, size = {"input_ids": (1, self.width), "logit_rows": (0, self.rows)}.get(str(value.name), (2, self.capacity))
            if value.shape is not None and len(value.shape) > axis:
                sizes.setdefault(_symbol(value.shape[axis]), size)
        for node in graph:
            for output in node.outputs:
                if not output.is_graph_output():
                    output.shape = None
        for value in (*graph.inputs, *graph.outputs):
            if value.shape is not None:
                value.shape = ir.Shape([dim if isinstance(dim, int) else sizes[_symbol(dim)] for dim in value.shape])
        return True


def _symbol(dim: int | ir.SymbolicDim) -> str:
    return str(dim if isinstance(dim, int) else dim.value)
