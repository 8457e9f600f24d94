"""Graph passes: from a traced graph in the dialect to operators that ONNX Runtime runs.

One file is one pass with one job. :func:`pipeline` is the order, with the reason for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from edgespec.errors import EdgespecError
from edgespec.export.passes.cancel_layout import CancelLayout
from edgespec.export.passes.constant_shapes import ConstantShapes
from edgespec.export.passes.early_exit import EarlyExit
from edgespec.export.passes.flatten_heads import FlattenHeads
from edgespec.export.passes.fold_layout import FoldLayout
from edgespec.export.passes.fold_offsets import FoldOffsets
from edgespec.export.passes.fuse_partial_rotary import FusePartialRotary
from edgespec.export.passes.fuse_skip_norm import FuseSkipNorm
from edgespec.export.passes.lower_attention import LowerAttention
from edgespec.export.passes.lower_experts import LowerExperts
from edgespec.export.passes.lower_norm import LowerNorm
from edgespec.export.passes.lower_rotary import LowerRotary
from edgespec.export.passes.lower_rows import LowerRows
from edgespec.export.passes.lower_weights import LowerWeights
from edgespec.export.passes.merge_projections import MergeProjections
from edgespec.export.passes.pack_attention import PackAttention
from edgespec.export.passes.remove_markers import RemoveMarkers
from edgespec.export.passes.tap_features import TapFeatures
from edgespec.export.passes.tidy import Tidy
from edgespec.export.recipe import Plan, Scheme


class Pipeline(ir.passes.Sequential):
    """Passes in order. An error that a pass raises on purpose arrives as it is, and not as one of onnx_ir's."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        try:
            return super().call(model)
        except ir.passes.PassError as error:
            if isinstance(error.__cause__, EdgespecError):
                raise error.__cause__ from None
            raise


def pipeline(plan: Plan | Scheme | None, early_exit: int | None = None, capacity: int = 0, taps: Sequence[str] = ()) -> Pipeline:
    """The passes in order; ``plan`` quantises the weights, ``early_exit`` keeps that many layers, ``capacity`` is the number of
    positions that the cache can hold, ``taps`` are the hidden states that draft heads read."""
    plan = Plan.of(plan)
    cut = [EarlyExit(early_exit)] if early_exit is not None else []
    tapped = [TapFeatures(taps)] if taps else []
    return Pipeline(
        *cut,  # first: it needs the markers, and nobody else needs the layers that it drops
        *tapped,  # needs the markers, too
        RemoveMarkers(),  # so that later passes see what really follows what
        ConstantShapes(),  # before folding: shapes that are constant here are not computed there
        Tidy(),  # equal cos and sin slices of all layers become one
        FoldLayout(),  # after folding, when shapes are constants
        FoldOffsets(),  # after folding, when offsets are plain constants
        FusePartialRotary(),  # before FlattenHeads, while heads are an axis of their own
        FlattenHeads(),  # puts its transposes where the model's own ones meet them
        CancelLayout(),  # needs constant shapes
        MergeProjections(plan),  # before lowering, while weights are one value each
        FuseSkipNorm(),  # before LowerNorm
        LowerNorm(),
        LowerRows(),
        LowerRotary(),
        LowerAttention(),
        Tidy(),  # so that q and k of a layer, and all layers, have the very same angles
        PackAttention(capacity),
        LowerExperts(plan.default),
        LowerWeights(plan),
        Tidy(),  # what the rewrites left over
    )
