"""Speculative decoding as it would go, walked over texts that the target has written: tokens per pass without running the target."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

FLAT_MS = 0.05  # of a draft step, besides what its weights cost


@dataclasses.dataclass
class Acceptance:
    """What became of proposals of K tokens. ``reached[s]`` counts proposals whose first s tokens were right, ``passes`` all of them."""

    reached: np.ndarray
    passes: int = 0
    tokens: int = 0

    @classmethod
    def none(cls, steps: int) -> Acceptance:
        return cls(np.zeros(steps + 1, np.int64))

    @property
    def tokens_per_pass(self) -> float:
        return self.tokens / self.passes if self.passes else 1.0

    @property
    def by_position(self) -> list[float]:
        """How often the draft's token of each place was right where those before it were."""
        return [float(right / max(tried, 1)) for tried, right in zip(self.reached[:-1], self.reached[1:], strict=True)]

    def add(self, other: Acceptance) -> None:
        self.reached = self.reached + other.reached
        self.passes += other.passes
        self.tokens += other.tokens

    def as_dict(self) -> dict[str, float | list[float]]:
        return {"tokens_per_pass": round(self.tokens_per_pass, 4), "by_position": [round(share, 4) for share in self.by_position]}


def walk(right: np.ndarray) -> Acceptance:
    """The passes over an answer.

    Args:
        right: bool [K, m], whether the proposal made behind token t of the answer is right in its place s; false behind the end.
    """
    steps, length = right.shape
    accepted = np.cumprod(right, 0).sum(0)
    found = Acceptance.none(steps)
    at = 0
    while at < length:
        count = int(accepted[at])
        found.reached[: count + 1] += 1
        found.passes += 1
        found.tokens += count + 1
        at += count + 1
    return found


def expected_speedup(acceptance: Acceptance, pass_ms: Mapping[str, float], draft_share: float) -> tuple[float, int]:
    """The speed over plain decoding that a cost curve promises, and the number of drafted tokens that gives it.

    Args:
        acceptance: of proposals of the full length; shorter ones are derived from it.
        pass_ms: milliseconds of a target pass by its width.
        draft_share: weights of a draft step over those of a pass of the target.
    """
    widths = sorted((int(width), ms) for width, ms in pass_ms.items())
    if not widths:
        return 0.0, 0
    one = widths[0][1]
    step = FLAT_MS + draft_share * one
    best = (1.0, 0)
    chance, tokens = 1.0, 1.0
    for length, share in enumerate(acceptance.by_position, 1):
        chance *= share
        tokens += chance
        cost = float(np.interp(1 + length, [width for width, _ in widths], [ms for _, ms in widths])) + length * step
        best = max(best, (tokens * one / cost, length))
    return best
