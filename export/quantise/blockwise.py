"""Block quantisation with searched scales and, unless their zero is in the middle, zero points.

A block of weights w becomes integers q in 0..2^bits-1 with w ≈ scale * (q - zero), zero an integer of the same range
(float zero points have no fast kernel). Plain rounding ("rtn") takes the block's full range. "search" also tries smaller and
larger scales, each refined by least squares as llama.cpp's k-quants do, then the neighbouring zero points, and keeps
the smallest squared error.
"""

from __future__ import annotations

import dataclasses
import math

import torch

from edgespec.export.quantise.parallel import by_rows
from edgespec.export.recipe import Scheme

ROWS_AT_ONCE = 512  # the search's temporaries of so many rows stay near the cache
# Factors on the scale of the full range. At 8 bits the search gains nothing that can be measured.
SHRINK = {4: (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 1.05), 8: (1.0,)}
NEIGHBOURS = {4: (-1, 1), 8: ()}

Fit = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""Codes, scale, zero, squared error, the last three with a last axis of 1."""


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

    @classmethod
    def of(cls, scheme: Scheme, columns: int, codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> Quantised:
        """From codes ``[N, blocks, block]``, scales and zeros ``[N, blocks]``, whole numbers of any type."""
        data, packed_zeros = pack(codes.to(torch.uint8), scheme.bits), pack(zeros.to(torch.uint8), scheme.bits)
        return cls(scheme, columns, data.contiguous(), scales.float().contiguous(), packed_zeros.contiguous())


def quantise(weight: torch.Tensor, scheme: Scheme, method: str = "search") -> Quantised:
    """Quantise ``weight`` float32 ``[N, K]``; ``method`` is "search" or "rtn". Columns that fill up the last block are exact zeros."""
    parts = by_rows(lambda chunk: _rows(chunk, scheme, method), weight, ROWS_AT_ONCE)
    codes, scales, zeros = (torch.cat([part[index] for part in parts]) for index in range(3))
    return Quantised.of(scheme, weight.shape[1], codes, scales, zeros)


def dequantise(quantised: Quantised) -> torch.Tensor:
    """float32 ``[N, K]``, what the kernel multiplies by."""
    bits = quantised.scheme.bits
    codes = unpack(quantised.data, bits)
    zeros = unpack(quantised.zero_points, bits)[:, : codes.shape[1]]
    values = quantised.scales[..., None] * (codes.float() - zeros[..., None].float())
    return values.flatten(1)[:, : quantised.columns]


def join(parts: list[Quantised]) -> Quantised:
    """Matrices of one scheme and width, one above the other."""
    data, scales, zeros = (torch.cat([getattr(part, name) for part in parts]) for name in ("data", "scales", "zero_points"))
    return dataclasses.replace(parts[0], data=data, scales=scales, zero_points=zeros)


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


def middle_zeros(scheme: Scheme, rows: int, blocks: int) -> torch.Tensor:
    """Zero points of ``rows`` rows that are not stored, packed as in :class:`Quantised`."""
    return pack(torch.full((rows, blocks), 2 ** (scheme.bits - 1), dtype=torch.uint8), scheme.bits)


def full_range(w: torch.Tensor, scheme: Scheme, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The scale that covers all of each block and 0, and the middle of what it covers: 0 for centred numbers, whose zero point is then
    half of the levels, rounded up."""
    levels = 2**scheme.bits - 1
    low, high = w.amin(axis, keepdim=True).clamp_(max=0), w.amax(axis, keepdim=True).clamp_(min=0)
    if scheme.is_centred:
        span, levels, middle = torch.maximum(high, -low), levels // 2, torch.zeros_like(high)
    else:
        span, middle = high - low, (low + high) / 2
    return (span / levels).clamp_(min=torch.finfo(torch.float32).tiny), middle


def _rows(weight: torch.Tensor, scheme: Scheme, method: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, columns = weight.shape
    blocks = math.ceil(columns / scheme.block)
    neighbours = () if scheme.is_centred else NEIGHBOURS[scheme.bits]
    padded = torch.nn.functional.pad(weight, (0, blocks * scheme.block - columns))
    w = padded.view(rows, blocks, scheme.block)
    levels = 2**scheme.bits - 1
    full, middle = full_range(w, scheme, -1)
    if method == "rtn":
        zero = torch.round(levels / 2 - middle / full).clamp_(0, levels)
        codes = torch.round(w / full + zero).clamp_(0, levels)
        return codes.to(torch.uint8), full.squeeze(-1), zero.squeeze(-1)
    best: Fit | None = None
    for factor in SHRINK[scheme.bits]:
        scale = full * factor
        # With a smaller scale the range no longer fits; keep its centre.
        best = _better(best, _refine(w, scale, torch.round(levels / 2 - middle / scale).clamp_(0, levels), levels))
    assert best is not None
    for step in neighbours:
        best = _better(best, _refine(w, best[1], (best[2] + step).clamp_(0, levels), levels))
    return best[0].to(torch.uint8), best[1].squeeze(-1), best[2].squeeze(-1)


def _better(old: Fit | None, new: Fit) -> Fit:
    """Block by block the one with the smaller error."""
    if old is None:
        return new
    chosen = new[3] < old[3]
    codes, scale, zero, error = (torch.where(chosen, after, before) for after, before in zip(new, old, strict=True))
    return codes, scale, zero, error


def _refine(w: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, levels: int) -> Fit:
    """Codes for this scale and zero, the scale that fits them best in least squares, zero, and the squared error."""
    codes = torch.round(w / scale + zero).clamp_(0, levels)
    centred = codes - zero
    power = (centred * centred).sum(-1, keepdim=True)
    fitted = torch.where(power > 0, (centred * w).sum(-1, keepdim=True) / power.clamp(min=1), scale)
    scale = torch.where(fitted > 0, fitted, scale)
    codes = torch.round(w / scale + zero).clamp_(0, levels)
    error = (scale * (codes - zero) - w).square_().sum(-1, keepdim=True)
    return codes, scale, zero, error
