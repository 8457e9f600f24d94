"""Name the likeliest tokens beside the logits, so that a caller who needs no others does not move whole rows out of a device's memory.

Adds the outputs ``top_logits`` float and ``top_ids`` int64, ``[1, R, K]``, in descending order. Needs ``logits`` in 32-bit floats.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgespec.export.passes.base import GraphPass, constant


class TopLogits(GraphPass):
    """``count`` is K, of the first ``vocabulary`` tokens: the rest of a larger head is padding."""

    def __init__(self, count: int, vocabulary: int) -> None:
        super().__init__()
        self.count = count
        self.vocabulary = vocabulary

    def edit(self, graph: ir.Graph) -> bool:
        logits = next(value for value in graph.outputs if value.name == "logits")
        assert logits.shape is not None
        zero, end, axis, count = (constant(graph, f"int_{n}", np.array([n], np.int64)) for n in (0, self.vocabulary, 2, self.count))
        real = ir.node("Slice", [logits, zero, end, axis])
        node = ir.node("TopK", [real.outputs[0], count], {"axis": -1}, num_outputs=2)
        graph.extend([real, node])
        for output, name, dtype in zip(node.outputs, ("top_logits", "top_ids"), (ir.DataType.FLOAT, ir.DataType.INT64), strict=True):
            output.name, output.type = name, ir.TensorType(dtype)
            output.shape = ir.Shape([*logits.shape.dims[:-1], self.count])
            graph.outputs.append(output)
        return True
