"""The hidden states of the target that a draft head reads: some of the columns that the target gives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edgespec.manifest import ModelSpec

Columns = slice | npt.NDArray[np.int64]


def columns(target: ModelSpec, reads: Sequence[str]) -> Columns:
    """Where the taps ``reads`` are among the columns of the target's ``hidden_states``; a slice, which copies nothing, if they lie side by
    side in this order."""
    starts: dict[str, tuple[int, int]] = {}
    start = 0
    for tap in target.taps or ():
        starts[tap.name] = start, start + tap.width
        start += tap.width
    chosen = np.concatenate([np.arange(*starts[name]) for name in reads])
    first, last = int(chosen[0]), int(chosen[-1])
    return slice(first, last + 1) if np.array_equal(chosen, np.arange(first, last + 1)) else chosen
