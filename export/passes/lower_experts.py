"""``Experts`` of the dialect becomes ``MoE`` (float) or ``QMoE`` (block-quantised) of com.microsoft.

Both operators choose the k largest router logits themselves and mix by their softmax. What the model's own router has
chosen is put in their terms exactly: the logarithm of a chosen expert's weight, and next to nothing for all others. The
softmax of that is the weights over their sum, so the result is multiplied by the sum.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgespec.export.passes.base import MICROSOFT, GraphPass, constant, dialect_nodes, fixed_shape, replace
from edgespec.export.recipe import Scheme, get_recipe, weight

ACCURACY_LEVEL = 4
SMALLEST_BLOCK = 16
LEAST = float(np.finfo(np.float32).tiny)  # its logarithm is -87: below any weight that a softmax could give


class LowerExperts(GraphPass):
    """``scheme`` None keeps the experts float, and so do matrices whose rows no block size fills evenly."""

    def __init__(self, scheme: Scheme | None) -> None:
        super().__init__()
        self.scheme = scheme

    def edit(self, graph: ir.Graph) -> bool:
        nodes = list(dialect_nodes(graph, "Experts"))
        for node in nodes:
            tokens, mix, first, first_bias, second, second_bias = (*node.inputs, None)[:6]
            assert first is not None
            assert second is not None
            logits = _inserted(graph, node, "Log", [_inserted(graph, node, "Max", [mix, constant(graph, "least", np.float32(LEAST))])])
            attributes: dict[str, int | float | str] = {
                "k": node.attributes["k"].as_int(),
                "activation_type": "swiglu",
                "swiglu_fusion": 1,
                "activation_alpha": node.attributes["alpha"].as_float(),
                "activation_beta": node.attributes["beta"].as_float(),
                "normalize_routing_weights": 1,
            }
            if node.attributes["limit"].as_float():
                attributes["swiglu_limit"] = node.attributes["limit"].as_float()
            scheme = _fitting(self.scheme, first, second)
            if scheme is None:
                inputs = [tokens, logits, first, first_bias, second, second_bias]
                product = ir.node("MoE", inputs, attributes, domain=MICROSOFT, version=1)
            else:
                attributes |= {"expert_weight_bits": scheme.bits, "block_size": scheme.block, "accuracy_level": ACCURACY_LEVEL}
                data1, scales1, zeros1 = _quantised(graph, first, scheme)
                data2, scales2, zeros2 = _quantised(graph, second, scheme)
                inputs = [tokens, logits, data1, scales1, first_bias, data2, scales2, second_bias, None, None, None, zeros1, zeros2]
                product = ir.node("QMoE", inputs, attributes, domain=MICROSOFT, version=1)
            graph.insert_before(node, product)
            total = _inserted(graph, node, "ReduceSum", [mix, constant(graph, "int_1", np.array([1], np.int64))])
            replace(graph, node, ir.node("Mul", [product.outputs[0], total]))
        return bool(nodes)


def _inserted(graph: ir.Graph, before: ir.Node, op: str, inputs: list[ir.Value | None]) -> ir.Value:
    node = ir.node(op, inputs)
    graph.insert_before(before, node)
    return node.outputs[0]


def _fitting(scheme: Scheme | None, *matrices: ir.Value) -> Scheme | None:
    """``scheme`` with the largest block, at most its own, that divides the rows of all ``matrices``."""
    if scheme is None or any(get_recipe(matrix) is None for matrix in matrices):
        return None
    block = scheme.block
    while any(fixed_shape(matrix)[-1] % block for matrix in matrices):
        block //= 2
        if block < SMALLEST_BLOCK:
            return None
    return Scheme(scheme.bits, block)


def _quantised(graph: ir.Graph, matrix: ir.Value, scheme: Scheme) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Data ``[E, N, K * bits / 8]``, scales ``[E, N, blocks]`` and zero points ``[E, N, ceil(blocks * bits / 8)]``."""
    recipe = get_recipe(matrix)
    assert recipe is not None
    experts, rows, columns = fixed_shape(matrix)
    blocks = columns // scheme.block
    parts = {
        "data": (ir.DataType.UINT8, columns * scheme.bits // 8),
        "scales": (ir.DataType.FLOAT, blocks),
        "zero_points": (ir.DataType.UINT8, -(-blocks * scheme.bits // 8)),
    }
    data, scales, zeros = (
        weight(graph, f"{matrix.name}.{part}{scheme.bits}", dtype, (experts, rows, width), recipe.quantised(scheme, part))
        for part, (dtype, width) in parts.items()
    )
    return data, scales, zeros
