"""Constant folding, merging of equal nodes, and removal of what nothing reads: onnx_ir's and onnxscript's own passes."""

from __future__ import annotations

import logging

import onnx_ir as ir
from onnx_ir.passes.common import (
    CommonSubexpressionEliminationPass,
    DeduplicateInitializersPass,
    IdentityEliminationPass,
    LiftConstantsToInitializersPass,
    RemoveUnusedNodesPass,
)
from onnxscript.optimizer import fold_constants

# It warns of every initializer without values; here those are the weights, which are streamed later.
logging.getLogger("onnx_ir.passes.common.initializer_deduplication").setLevel(logging.ERROR)


class Tidy(ir.passes.InPlacePass):
    def call(self, model: ir.Model) -> ir.passes.PassResult:
        # Shapes and slices of traced code are made of constants; what they compute is known now.
        fold_constants(model, onnx_shape_inference=False)
        for step in (
            IdentityEliminationPass(),
            LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
            DeduplicateInitializersPass(),
            CommonSubexpressionEliminationPass(),  # after the constants: nodes are equal only if their inputs are
            RemoveUnusedNodesPass(),
        ):
            step(model)
        return ir.passes.PassResult(model, modified=True)
