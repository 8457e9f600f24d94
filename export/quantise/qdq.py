"""Weights as DequantizeLinear takes them: what NPUs run."""

from __future__ import annotations

import numpy as np
import torch

from edgespec.export.quantise.blockwise import Quantised, pack, unpack

LEVELS = 2**16 - 1


def signed_parts(quantised: Quantised) -> dict[str, np.ndarray]:
    """A matrix ``[N, K]`` of a signed scheme as "data" int8 ``[K, N]``, or int4 in bytes, two along a row, and "scales" float32
    ``[blocks, N]``."""
    bits = quantised.scheme.bits
    codes = unpack(quantised.data, bits).flatten(1)[:, : quantised.columns].T.contiguous()
    numbers = (codes.to(torch.int16) - 2 ** (bits - 1)).to(torch.int8)
    data = numbers if bits == 8 else pack((numbers.flatten() & 0xF).to(torch.uint8), bits)
    return {"data": data.numpy(), "scales": quantised.scales.T.contiguous().numpy()}


def whole_parts(tensor: np.ndarray, low: float = 0.0, high: float = 0.0) -> dict[str, np.ndarray]:
    """A float tensor as "data" uint16 of its shape with one "scales" and one "zero_points", which cover this range, too."""
    scale, zero = whole_range(min(low, float(tensor.min())), max(high, float(tensor.max())))
    data = np.clip(np.round(tensor / scale) + zero, 0, LEVELS).astype(np.uint16)
    return {"data": data, "scales": np.array(scale, np.float32), "zero_points": np.array(zero, np.uint16)}


def whole_range(low: float, high: float) -> tuple[np.float32, int]:
    """Scale and zero point of uint16 numbers that cover a range and 0."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = np.float32(max(high - low, 1e-6) / LEVELS)
    return scale, round(-low / float(scale))
