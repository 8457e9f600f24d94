"""``Linear`` and ``Embedding`` of the dialect become operators on float or block-quantised weights.

    float      FusedMatMul(x, W transposed)   Gather(W, ids)
    quantised  MatMulNBits                    GatherBlockQuantized
    signed     MatMul(x, DequantizeLinear)    GatherBlockQuantized

A tied embedding and head keep one recipe, hence one copy of the bytes. accuracy_level 4 (int8 activations) always:
the other levels have no fast kernel for several rows.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from edgespec.export.passes.base import MICROSOFT, GraphPass, constant, dialect_nodes, fixed_shape, replace, replace_value
from edgespec.export.recipe import Plan, Scheme, get_recipe, weight

ACCURACY_LEVEL = 4


class LowerWeights(GraphPass):
    """``plan`` says how each matrix is quantised; None keeps all of them float. ``standard`` writes float products with operators
    of ONNX itself, ``signed`` those of quantised weights, too."""

    def __init__(self, plan: Plan | Scheme | None, standard: bool = False, signed: bool = False) -> None:
        super().__init__()
        self.plan = Plan.of(plan)
        self.standard = standard
        self.signed = signed

    def edit(self, graph: ir.Graph) -> bool:
        linears, embeddings = list(dialect_nodes(graph, "Linear")), list(dialect_nodes(graph, "Embedding"))
        for node in linears:
            product = self._product(graph, node)
            if len(node.inputs) == 2:
                replace(graph, node, product)
                continue
            graph.insert_before(node, product)
            product.outputs[0].type, product.outputs[0].shape = node.outputs[0].type, node.outputs[0].shape
            replace(graph, node, ir.node("Add", [product.outputs[0], node.inputs[2]]))
        for node in embeddings:
            self._lookup(graph, node)
        return bool(linears or embeddings)

    def _product(self, graph: ir.Graph, node: ir.Node) -> ir.Node:
        x, matrix = node.inputs[:2]
        assert matrix is not None
        recipe = get_recipe(matrix)
        scheme = self.plan.of_recipe(recipe) if recipe else None
        if scheme is None and self.standard:
            turned = ir.node("Transpose", [matrix], {"perm": (1, 0)})  # of a constant: done once, when the graph is loaded
            graph.insert_before(node, turned)
            return ir.node("MatMul", [x, turned.outputs[0]])
        if scheme is None:
            return ir.node("FusedMatMul", [x, matrix], {"transB": 1}, domain=MICROSOFT, version=1)
        if self.signed:
            values = _dequantised(graph, matrix, scheme)
            graph.insert_before(node, values)
            return ir.node("MatMul", [x, values.outputs[0]])
        rows, columns = fixed_shape(matrix)
        parts = quantised_parts(graph, matrix, scheme)
        attributes = {"K": columns, "N": rows, "bits": scheme.bits, "block_size": scheme.block, "accuracy_level": ACCURACY_LEVEL}
        return ir.node("MatMulNBits", [x, *parts], attributes, domain=MICROSOFT, version=1)

    def _lookup(self, graph: ir.Graph, node: ir.Node) -> None:
        ids, table = node.inputs
        assert table is not None
        recipe = get_recipe(table)
        scheme = self.plan.of_recipe(recipe) if recipe else None
        if recipe is None or scheme is None:
            replace(graph, node, ir.node("Gather", [table, ids], {"axis": 0}))
            return
        rows, columns = fixed_shape(table)
        _, *scales_and_zeros = quantised_parts(graph, table, scheme)
        blocks = math.ceil(columns / scheme.block)
        # The bytes of the head's data with the two last axes taken as one: a second initializer at the same offset.
        width = blocks * scheme.block * scheme.bits // 8
        name = f"{table.name}.rows{scheme.bits}"
        data = weight(graph, name, ir.DataType.UINT8, (rows, width), recipe.quantised(scheme, "data"))
        attributes = {"bits": scheme.bits, "block_size": scheme.block, "gather_axis": 0, "quantize_axis": 1}
        lookup = ir.node("GatherBlockQuantized", [data, ids, *scales_and_zeros], attributes, domain=MICROSOFT, version=1)
        if blocks * scheme.block == columns:
            replace(graph, node, lookup)
            return
        zero, end, axis = (constant(graph, f"int_{value}", np.array([value], np.int64)) for value in (0, columns, 2))
        trimmed = ir.node("Slice", [lookup.outputs[0], zero, end, axis])
        graph.insert_before(node, [lookup, trimmed])
        replace_value(node.outputs[0], trimmed.outputs[0])
        graph.remove(node, safe=True)


def _dequantised(graph: ir.Graph, matrix: ir.Value, scheme: Scheme) -> ir.Node:
    """The node that gives the matrix turned, ``[K, N]``, from signed numbers of as many bits and scales ``[blocks, N]``."""
    recipe = get_recipe(matrix)
    assert recipe is not None
    rows, columns = fixed_shape(matrix)
    scheme = scheme.as_signed
    name = f"{matrix.name}.signed{scheme.bits}"
    dtype = ir.DataType.INT4 if scheme.bits == 4 else ir.DataType.INT8
    data = weight(graph, name, dtype, (columns, rows), recipe.quantised(scheme, "data"))
    shape = (math.ceil(columns / scheme.block), rows)
    scales = weight(graph, f"{name}.scales", ir.DataType.FLOAT, shape, recipe.quantised(scheme, "scales"))
    return ir.node("DequantizeLinear", [data, scales], {"axis": 0, "block_size": scheme.block}, version=23)


def quantised_parts(graph: ir.Graph, matrix: ir.Value, scheme: Scheme) -> list[ir.Value]:
    """The initializers data ``[N, blocks, block * bits / 8]``, scales ``[N, blocks]`` and, unless symmetric, zero points
    ``[N, ceil(blocks * bits / 8)]``."""
    recipe = get_recipe(matrix)
    assert recipe is not None
    rows, columns = fixed_shape(matrix)
    blocks = math.ceil(columns / scheme.block)
    parts = {
        "data": (ir.DataType.UINT8, (rows, blocks, scheme.block * scheme.bits // 8)),
        "scales": (ir.DataType.FLOAT, (rows, blocks)),
    }
    if not scheme.symmetric:
        parts["zero_points"] = (ir.DataType.UINT8, (rows, math.ceil(blocks * scheme.bits / 8)))
    return [
        weight(graph, f"{matrix.name}.{part}{scheme.bits}", dtype, shape, recipe.quantised(scheme, part))
        for part, (dtype, shape) in parts.items()
    ]
