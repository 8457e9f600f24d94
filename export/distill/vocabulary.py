"""The draft's vocabulary: the tokens that the target uses most (FR-Spec, Zhao et al. 2025). What a draft cannot say it gets wrong, and
what it can say costs a row of its head in every step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from edgespec.export.distill.shards import Shard

COVERAGE = 0.985  # share of the corpus's answers
LEAST = 256
STEP = 64  # sizes are multiples of it


def count_tokens(shards: Iterable[Shard], size: int) -> np.ndarray:
    """How often each of ``size`` tokens comes in the answers, int64 [size]."""
    counts = np.zeros(size, np.int64)
    for shard in shards:
        for begin, end, start in zip(shard.bounds[:-1], shard.bounds[1:], shard.starts, strict=True):
            counts += np.bincount(shard.tokens[begin + start : end], minlength=size)[:size]
    return counts


def choose_tokens(counts: np.ndarray, wanted: int | None, always: Sequence[int] = ()) -> np.ndarray:
    """The target's ids of the draft's tokens, ascending, int64 [Vd].

    Args:
        counts: of each token [V].
        wanted: how many; None for as many as cover nearly all of ``counts``.
        always: tokens that are among them, such as the ends of texts.
    """
    counts = counts.copy()
    counts[list(always)] = counts.max() + 1
    ranked = np.argsort(-counts, kind="stable")
    if wanted is None:
        share = np.cumsum(counts[ranked]) / max(counts.sum(), 1)
        wanted = max(int(np.searchsorted(share, COVERAGE)) + 1, LEAST)
        wanted = -(-wanted // STEP) * STEP
    chosen: np.ndarray = np.sort(ranked[: min(wanted, len(counts))])
    return chosen


def coverage(counts: np.ndarray, ids: np.ndarray) -> float:
    """Share of the counted tokens that are among ``ids``."""
    return float(counts[ids].sum() / max(counts.sum(), 1))
