"""Llama 3's scaling of rotary frequencies, which llama.cpp keeps as a tensor of factors and transformers as four numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

NAME = "rope_freqs.weight"
# factor, low_freq_factor, high_freq_factor, original_max_position_embeddings as published: Llama 3.1 and 3.3, 3.2, 4 Scout.
PUBLISHED = ((8.0, 1.0, 4.0, 8192), (32.0, 1.0, 4.0, 8192), (16.0, 1.0, 1.0, 8192))


def rope_parameters(factors: np.ndarray, parameters: dict[str, Any]) -> dict[str, Any] | None:
    """transformers' ``rope_parameters`` for a file's factors ``[R/2]``, which divide the frequencies; None when no published
    scaling gives these factors."""
    theta = float(parameters["rope_theta"])
    wavelengths = 2 * math.pi * theta ** (np.arange(len(factors)) / len(factors))
    for factor, low, high, original in PUBLISHED:
        if np.allclose(factors, _factors(wavelengths, factor, low, high, original), rtol=1e-3):
            scaling = {"factor": factor, "low_freq_factor": low, "high_freq_factor": high, "original_max_position_embeddings": original}
            return {**parameters, "rope_type": "llama3", **scaling}
    return None


def _factors(wavelengths: np.ndarray, factor: float, low: float, high: float, original: int) -> np.ndarray:
    """Long waves are slowed by ``factor``, short ones are left, and in between it goes from one to the other."""
    turns = original / wavelengths
    if high == low:
        return np.where(turns < low, factor, 1.0)
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return 1 / ((1 - smooth) / factor + smooth)
