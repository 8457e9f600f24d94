"""Two models' logits for the same text, as a distance."""

from __future__ import annotations

import math

import numpy as np
import torch

from edgespec.manifest import Fidelity

ROWS_AT_ONCE = 32  # a row of logits is large, and several copies are made


def compare(wanted: np.ndarray, found: np.ndarray, following: np.ndarray | None = None) -> Fidelity:
    """Both ``[rows, V]``; ``following`` int ``[rows - 1]`` are the tokens that come next, for the perplexities."""
    kl, error, spread, losses = 0.0, 0.0, 0.0, np.zeros(2)
    for start in range(0, len(wanted), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        p, q = (torch.log_softmax(torch.from_numpy(rows[part]), -1) for rows in (wanted, found))
        kl += float((p.exp() * (p - q)).sum(dtype=torch.float64))
        difference = found[part] - wanted[part]
        difference -= difference.mean(-1, keepdims=True)  # a shift of all logits changes nothing
        error += float(np.square(difference).mean(-1, dtype=np.float64).sum())
        spread += float(wanted[part].std(-1, dtype=np.float64).sum())
        if following is not None:
            index = torch.from_numpy(following[part])[:, None]
            losses -= [float(rows[: len(index)].gather(1, index).double().sum()) for rows in (q, p)]
    rows = len(wanted)
    perplexities = [math.exp(min(300.0, loss / len(following))) for loss in losses] if following is not None and len(following) else []
    top1 = float((wanted.argmax(-1) == found.argmax(-1)).mean())
    return Fidelity(max(0.0, kl / rows), top1, math.sqrt(error / rows) / (spread / rows), rows, *perplexities)


def mean(parts: list[Fidelity]) -> Fidelity:
    """Over rows; perplexities are means of logarithms."""
    rows = sum(part.rows for part in parts)
    kl, top1, rms = (sum(getattr(part, name) * part.rows for part in parts) / rows for name in ("kl", "top1", "relative_rms"))
    predicted = [part for part in parts if part.perplexity and part.original_perplexity]
    tokens = sum(part.rows - 1 for part in predicted)
    if not tokens:
        return Fidelity(kl, top1, rms, rows)
    ours, original = (
        math.exp(sum(math.log(getattr(part, name)) * (part.rows - 1) for part in predicted) / tokens)
        for name in ("perplexity", "original_perplexity")
    )
    return Fidelity(kl, top1, rms, rows, ours, original)
