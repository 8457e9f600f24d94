"""Texts that repeat themselves. Small models fall into loops; a corpus of loops teaches a draft what n-grams foretell anyway."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

PERIODS = 48  # longest phrase, in tokens, whose repetition counts as a loop
REPEATED = 3  # times that a phrase comes in a row
SPAN = 24  # tokens that the repetitions fill, at least
GRAM = 4
LEAST_DISTINCT = 0.5  # share of an answer's 4-grams that differ from one another


def period_of(tokens: Sequence[int]) -> int | None:
    """Length of the phrase that has come several times in a row at the end of ``tokens``, None if none has."""
    for period in range(1, PERIODS + 1):
        span = max(REPEATED * period, SPAN)
        if span > len(tokens):
            return None
        tail = tokens[-span:]
        if tail[period:] == tail[:-period]:
            return period
    return None


def before_loop(tokens: Sequence[int]) -> int:
    """Number of tokens up to the end of the first turn of the loop that ``tokens`` end in; all of them if they end in none."""
    period = period_of(tokens)
    if period is None:
        return len(tokens)
    at = len(tokens) - period
    while at > 0 and tokens[at - 1] == tokens[at - 1 + period]:
        at -= 1
    return at + period


def distinct(tokens: Sequence[int]) -> float:
    """Share of the 4-grams that differ from one another, 1 for texts that have none."""
    if len(tokens) < GRAM:
        return 1.0
    grams = np.lib.stride_tricks.sliding_window_view(np.asarray(tokens), GRAM)
    return len(np.unique(grams, axis=0)) / len(grams)


def is_repetitive(tokens: Sequence[int]) -> bool:
    return distinct(tokens) < LEAST_DISTINCT
