"""How far logits are from what they should be."""

from __future__ import annotations

import numpy as np


def relative_rms(found: np.ndarray, wanted: np.ndarray) -> float:
    """rms difference over the spread of what is wanted."""
    return float(np.sqrt(np.square(found - wanted).mean()) / wanted.std())
