"""Asymmetric block quantisation with searched scales.

A block of weights w becomes integers q in 0..2^bits-1 with w ≈ scale * (q - zero), zero an integer of the same range
(float zero points have no fast kernel). Plain rounding takes the block's full range; a smaller or larger scale often has
a smaller squared error, so a few are tried, each refined by least squares as llama.cpp's k-quants do, and the best one is kept.
"""

from __future__ import annotations

import dataclasses
import math

import torch

from edgespec.export.recipe import Scheme

ROWS_AT_ONCE = 2048
# Factors on the scale of the full range. At 8 bits the search gains nothing that can be measured.
SHRINK = {4: (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 1.05), 8: (1.0,)}


@dataclasses.dataclass(frozen=True)
class Quantised:
    """A quantised matrix ``[N, K]``.

    ``data`` is uint8 ``[N, blocks, block * bits / 8]`` (4 bits: the even column in the low half), ``scales`` float32
    ``[N, blocks]``, ``zero_points`` uint8 ``[N, ceil(blocks * bits / 8)]``.
    """

    scheme: Scheme
    columns: int
    data: torch.Tensor
    scales: torch.Tensor
    zero_points: torch.Tensor


def quantise(weight: torch.Tensor, scheme: Scheme) -> Quantised:
    """Quantise ``weight`` float32 ``[N, K]``. Columns that fill up the last block are exact zeros."""
    parts = [_rows(chunk, scheme) for chunk in torch.split(weight, ROWS_AT_ONCE)]
    data, scales, zeros = (torch.cat([part[index] for part in parts]) for index in range(3))
    return Quantised(scheme, weight.shape[1], data, scales, zeros)


def dequantise(quantised: Quantised) -> torch.Tensor:
    """float32 ``[N, K]``, what the kernel multiplies by."""
    bits = quantised.scheme.bits
    codes = unpack(quantised.data, bits)
    zeros = unpack(quantised.zero_points, bits)[:, : codes.shape[1]]
    values = quantised.scales[..., None] * (codes.float() - zeros[..., None].float())
    return values.flatten(1)[:, : quantised.columns]


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """uint8 codes to bytes along the last axis, the even element in the low half; an odd last one is padded by 0."""
    if bits == 8:
        return codes
    if codes.shape[-1] % 2:
        codes = torch.nn.functional.pad(codes, (0, 1))
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack(data: torch.Tensor, bits: int) -> torch.Tensor:
    """The inverse of :func:`pack`, the padding included."""
    return data if bits == 8 else torch.stack([data & 0xF, data >> 4], -1).flatten(-2)


def _rows(weight: torch.Tensor, scheme: Scheme) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, columns = weight.shape
    blocks = math.ceil(columns / scheme.block)
    padded = torch.nn.functional.pad(weight, (0, blocks * scheme.block - columns))
    w = padded.view(rows, blocks, scheme.block)
    levels = 2**scheme.bits - 1
    low, high = w.amin(-1, keepdim=True).clamp(max=0), w.amax(-1, keepdim=True).clamp(min=0)
    full = ((high - low) / levels).clamp(min=torch.finfo(torch.float32).tiny)
    best: tuple[torch.Tensor, ...] | None = None
    for factor in SHRINK[scheme.bits]:
        scale = full * factor
        middle = (low + high) / 2
        # With a smaller scale the range no longer fits; keep its centre.
        zero = torch.round(levels / 2 - middle / scale).clamp(0, levels)
        candidate = _refine(w, scale, zero, levels)
        if best is None:
            best = candidate
        else:
            better = candidate[3] < best[3]
            best = tuple(torch.where(better, new, old) for new, old in zip(candidate, best, strict=True))
    assert best is not None
    codes, scale, zero, _ = best
    return pack(codes.to(torch.uint8), scheme.bits), scale.squeeze(-1), pack(zero.squeeze(-1).to(torch.uint8), scheme.bits)


def _refine(w: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, levels: int) -> tuple[torch.Tensor, ...]:
    """Codes for this scale and zero, the scale that fits them best in least squares, zero, and the squared error."""
    codes = torch.round(w / scale + zero).clamp(0, levels)
    centred = codes - zero
    power = (centred * centred).sum(-1, keepdim=True)
    fitted = torch.where(power > 0, (centred * w).sum(-1, keepdim=True) / power.clamp(min=1), scale)
    scale = torch.where(fitted > 0, fitted, scale)
    codes = torch.round(w / scale + zero).clamp(0, levels)
    error = ((scale * (codes - zero) - w) ** 2).sum(-1, keepdim=True)
    return codes, scale, zero, error
