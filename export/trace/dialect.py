"""The few operators that a traced graph is made of besides standard ONNX, in the domain ``edgespec``.

A stand-in (edgespec.export.standins) emits one of these in place of a transformers module; the passes
(edgespec.export.passes) merge them while they are still simple, and then lower each to an operator that ONNX
Runtime runs. None is left in a finished graph.

    Linear(x [..., K], weight [N, K], bias [N] or none)                    -> [..., N]
    Embedding(ids [1, S], weight [V, H])                                   -> [1, S, H]
    RMSNorm(x [..., H], weight [H]; epsilon)                               -> [..., H]
    Rotary(x [1, heads, S, D], cos [1, S, R], sin [1, S, R]; interleaved, angles)
                                                                           -> like x
    Attention(q [1, N, S, D], k [1, G, S, D], v [1, G, S, Dv], past_k [1, G, C, D], past_v [1, G, C, Dv], sink [N] or none;
              layer, scale, window, softcap)                               -> [1, S, N, Dv], present_k, present_v
    SharedAttention(q [1, N, S, D], present_k [1, G, C, D], present_v [1, G, C, Dv] of an earlier layer, sink [N] or none;
                    layer, scale, window, softcap)                         -> [1, S, N, Dv]
    Experts(x [T, H], mix [T, E], gate_up [E, 2I, H], its bias [E, 2I] or none, down [E, H, I], its bias [E, H] or none;
            k, alpha, beta, limit)                                         -> [T, H]
    LayerOutput(x [1, S, H]; layer)                                        -> x, what leaves a decoder layer
    Rows(x [1, A, H], y [1, B, H])                                         -> [1, A + B, H], of a draft head; A or B may be 0

The operators take tensors as transformers has them at that point: every reshape in traced code costs time in torch
and a handful of nodes, so changes of layout are left to the passes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.onnx.ops

DOMAIN = "edgespec"
Attribute = int | float | str | bool


def emit(op: str, inputs: Sequence[torch.Tensor | None], shape: Sequence[int | torch.SymInt], **attrs: Attribute) -> torch.Tensor:
    """One operator of the dialect with one output of ``shape`` and the first input's type."""
    return emit_many(op, inputs, [shape], **attrs)[0]


def emit_many(
    op: str, inputs: Sequence[torch.Tensor | None], shapes: Sequence[Sequence[int | torch.SymInt]], **attrs: Attribute
) -> Sequence[torch.Tensor]:
    """One operator of the dialect with an output per shape, all of the type of the first floating input."""
    dtype = next(tensor.dtype for tensor in inputs if tensor is not None and tensor.dtype.is_floating_point)
    return torch.onnx.ops.symbolic_multi_out(
        f"{DOMAIN}::{op}", inputs, attrs=dict(attrs), dtypes=[dtype] * len(shapes), shapes=shapes, version=1
    )
