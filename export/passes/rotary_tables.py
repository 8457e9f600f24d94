"""Rotary angles as tables by position, in place of the part of the graph that computes them in every pass."""

from __future__ import annotations

import copy

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from edgespec.export.passes.base import constant

MAX_TABLE_BYTES = 8 * 2**20  # a table lies in the graph file itself


def rotary_tables(graph: ir.Graph, cos: ir.Value, sin: ir.Value, capacity: int) -> tuple[ir.Value, ir.Value] | None:
    """Constants ``[capacity, R/2]`` of both, found by running the part of the graph that computes them from position_ids. None
    when they depend on more than the positions or are too large."""
    try:
        part = ir.convenience.extract(graph, ["position_ids"], [str(cos.name), str(sin.name)])
    except ValueError:  # it reads other inputs too
        return None
    if any(value.const_value is None for value in part.initializers.values()):
        return None
    model = ir.Model(part, ir_version=10)
    model.graph.opset_imports.update({name: version for name, version in graph.opset_imports.items() if name not in part.opset_imports})
    session = ort.InferenceSession(ir.to_proto(copy.copy(model)).SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, {"position_ids": np.arange(capacity)[None]})
    if sum(table.nbytes for table in found) > MAX_TABLE_BYTES:
        return None
    names = [f"{value.name}_by_position" for value in (cos, sin)]
    first, second = (constant(graph, name, np.ascontiguousarray(table[0])) for name, table in zip(names, found, strict=True))
    return first, second
