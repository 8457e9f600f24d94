"""Graph passes: from a traced graph in the dialect to operators that ONNX Runtime runs.

One file is one pass with one job. :func:`pipeline` is the order, with the reason for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from edgespec.errors import EdgespecError
from edgespec.export.passes.cancel_layout import CancelLayout
from edgespec.export.passes.constant_shapes import ConstantShapes
from edgespec.export.passes.early_exit import EarlyExit
from edgespec.export.passes.fix_shapes import FixShapes
from edgespec.export.passes.flatten_heads import FlattenHeads
from edgespec.export.passes.fold_layout import FoldLayout
from edgespec.export.passes.fold_offsets import FoldOffsets
from edgespec.export.passes.fuse_partial_rotary import FusePartialRotary
from edgespec.export.passes.fuse_skip_norm import FuseSkipNorm
from edgespec.export.passes.half_floats import HalfFloats
from edgespec.export.passes.lower_attention import LowerAttention
from edgespec.export.passes.lower_experts import LowerExperts
from edgespec.export.passes.lower_norm import LowerNorm
from edgespec.export.passes.lower_rotary import LowerRotary
from edgespec.export.passes.lower_rows import LowerRows
from edgespec.export.passes.lower_weights import LowerWeights
from edgespec.export.passes.merge_projections import MergeProjections
from edgespec.export.passes.name_values import NameValues
from edgespec.export.passes.pack_attention import PackAttention
from edgespec.export.passes.pad_attention import PadAttention
from edgespec.export.passes.quantise_activations import QuantiseActivations, Ranges
from edgespec.export.passes.remove_markers import RemoveMarkers
from edgespec.export.passes.static_attention import StaticAttention
from edgespec.export.passes.tabulate_angles import TabulateAngles
from edgespec.export.passes.tap_features import TapFeatures
from edgespec.export.passes.tidy import Tidy
from edgespec.export.passes.top_logits import TopLogits
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


@dataclasses.dataclass(frozen=True)
class StaticSizes:
    """S new tokens, R rows with logits and C rows of cache of a graph of fixed shapes."""

    width: int
    rows: int
    capacity: int


@dataclasses.dataclass(frozen=True)
class Style:
    """What a graph for passes of any width is made of; the default is what the CPU's kernels run best.

    Attributes:
        packed: attention takes q, k and v as one tensor and rotates q and k itself; else rotary embedding is an operator of its own.
        standard: products of float weights are operators of ONNX itself.
        trees: attention takes a bias that says who sees whom; without one, passes are chains.
        half: 16-bit floats.
        top: how many of the likeliest tokens the graph names beside the logits, of the first how many tokens.
        padded: attention can be given more rows than there are tokens.
    """

    packed: bool = True
    standard: bool = False
    trees: bool = True
    half: bool = False
    top: tuple[int, int] | None = None
    padded: bool = False


CPU_STYLE = Style()


def pipeline(
    plan: Plan | Scheme | None, early_exit: int | None = None, capacity: int = 0, taps: Sequence[str] = (), style: Style = CPU_STYLE
) -> Pipeline:
    """The passes in order; ``plan`` quantises the weights, ``early_exit`` keeps that many layers, ``capacity`` is the number of
    positions that the cache can hold, ``taps`` are the hidden states that draft heads read, ``style`` is what a provider wants."""
    plan = Plan.of(plan)
    return Pipeline(
        *_beginning(early_exit, taps),
        FlattenHeads(),  # puts its transposes where the model's own ones meet them
        CancelLayout(),  # needs constant shapes
        MergeProjections(plan),  # before lowering, while weights are one value each
        FuseSkipNorm(),  # before LowerNorm
        LowerNorm(),
        LowerRows(),
        LowerRotary(),
        LowerAttention(style.trees),
        Tidy(),  # so that q and k of a layer, and all layers, have the very same angles
        PackAttention(capacity) if style.packed else TabulateAngles(capacity),
        *([PadAttention()] if style.padded else []),  # what goes into attention is final
        LowerExperts(plan.default),
        LowerWeights(plan, standard=style.standard),
        *([HalfFloats()] if style.half else []),  # when all operators are those of the finished graph
        *([TopLogits(*style.top)] if style.top else []),
        Tidy(),  # what the rewrites left over
    )


def static_pipeline(
    plan: Plan | Scheme | None, early_exit: int | None, sizes: StaticSizes, taps: Sequence[str] = (), ranges: Ranges | None = None
) -> Pipeline:
    """The passes for a graph of fixed shapes out of standard operators, which is what an NPU's compiler takes. Arguments and
    order are those of :func:`pipeline` where nothing is said; with ``ranges`` activations are whole numbers, with empty ones they are
    about to be."""
    plan = Plan.of(plan)
    whole = [NameValues(), QuantiseActivations(ranges)] if ranges is not None else []
    return Pipeline(
        *_beginning(early_exit, taps),
        CancelLayout(),  # heads stay an axis: the cache is joined along rows of [1, heads, S, D]
        MergeProjections(plan),  # as in the other graphs, so that the weights are the same bytes
        LowerNorm(standard=True),
        LowerRotary(),
        StaticAttention(),
        Tidy(),  # so that all layers have the very same angles
        TabulateAngles(sizes.capacity),
        LowerExperts(plan.default),
        LowerWeights(plan, standard=True, signed=ranges is not None),
        FixShapes(sizes.width, sizes.rows, sizes.capacity),  # last: other passes tell the tokens' axis by its being dynamic
        Tidy(),
        *whole,  # what is computed is final
    )


def _beginning(early_exit: int | None, taps: Sequence[str]) -> list[ir.passes.InPlacePass]:
    """What comes first in every graph, while heads are an axis of their own."""
    cut = [EarlyExit(early_exit)] if early_exit is not None else []
    tapped = [TapFeatures(taps)] if taps else []
    return [
        *cut,  # first: it needs the markers, and nobody else needs the layers that it drops
        *tapped,  # needs the markers, too
        RemoveMarkers(),  # so that later passes see what really follows what
        ConstantShapes(),  # before folding: shapes that are constant here are not computed there
        Tidy(),  # equal cos and sin slices of all layers become one
        FoldLayout(),  # after folding, when shapes are constants
        FoldOffsets(),  # after folding, when offsets are plain constants
        FusePartialRotary(),
    ]
