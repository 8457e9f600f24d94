"""The few statistics that the tables use. Machines are noisy: low percentiles and medians, and ratios within one round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def p10(values: Sequence[float]) -> float:
    return float(np.percentile(values, 10))


def row(cells: Sequence[str]) -> str:
    """A line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def median(values: Sequence[float]) -> float:
    return float(np.median(values))


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Median over rounds of ours / theirs, so that a slow phase of the machine hits both."""
    return median([a / b for a, b in zip(ours, theirs, strict=True)])
