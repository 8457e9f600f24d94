"""How many tokens to draft: fixed, or the number that pays best under measured costs and the running acceptance.

With acceptance a per token a chain of K drafts gives E(K) = (1 - a^(K+1)) / (1 - a) tokens per round (Leviathan et al.
2023, equation 1) and takes target(K+1) + K * draft milliseconds. The best K has the most tokens per millisecond. K = 0 is
plain decoding; it is chosen when no K gains at least two per cent, and after a while a few rounds try again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

LEAST_GAIN = 1.02
MEMORY = 0.95  # weight of the past after a round: about the last twenty rounds count
FIRST_PAUSE, LONGEST_PAUSE = 16, 256
PROBE_ROUNDS = 4


class LengthPolicy(Protocol):
    """Says how many tokens a drafter should propose in the next round."""

    def length(self) -> int: ...

    def observe(self, drafted: int, accepted: int) -> None:
        """A round verified ``drafted`` tokens of this drafter and accepted the first ``accepted``."""

    @property
    def off(self) -> str | None:
        """Why it currently drafts nothing, None while it does."""


class FixedLength:
    """Always the same number."""

    def __init__(self, length: int) -> None:
        self._length = length

    def length(self) -> int:
        return self._length

    def observe(self, drafted: int, accepted: int) -> None:
        pass

    @property
    def off(self) -> str | None:
        return None


class AutoLength:
    """The best number for one drafter. It may serve several generations: what it learnt in one holds for the next.

    Args:
        target_ms: cost of a target pass of n tokens, padding included.
        draft_ms: cost of one drafted token.
        most: largest number allowed.
    """

    def __init__(self, target_ms: Callable[[int], float], draft_ms: float, most: int) -> None:
        self._target = [target_ms(1 + count) for count in range(most + 1)]
        self._draft = draft_ms
        # Weighted counts of accepted tokens and of rejections; their ratio is the maximum-likelihood estimate of a. The
        # start says 0.75 with the weight of two tokens: optimistic, so that a drafter gets its chance, and soon outvoted.
        self._accepted, self._rejected = 1.5, 0.5
        self._pause = 0
        self._next_pause = FIRST_PAUSE
        self._probing = PROBE_ROUNDS

    @property
    def acceptance(self) -> float:
        """Running estimate of the probability that a drafted token is accepted, given that those before it were."""
        return self._accepted / (self._accepted + self._rejected)

    @property
    def off(self) -> str | None:
        if not self._pause:
            return None
        return f"at an acceptance of {self.acceptance:.0%} no draft length gains {LEAST_GAIN - 1:.0%} over plain decoding"

    def _gains(self) -> list[float]:
        """Speed over that of plain decoding for every number of drafted tokens, in one go: it is asked for in every round."""
        gains, tokens, power = [], 0.0, 1.0
        for count, target_ms in enumerate(self._target):
            tokens += power
            power *= self.acceptance
            gains.append(tokens * self._target[0] / (target_ms + count * self._draft))
        return gains

    def length(self) -> int:
        if self._pause > 1:
            self._pause -= 1
            return 0
        if self._pause:
            self._pause, self._probing = 0, PROBE_ROUNDS
            # What was learnt before the pause counts less than what the probe will show.
            self._accepted, self._rejected = 0.3 * self._accepted, 0.3 * self._rejected
        if len(self._target) < 2:
            return 0
        gains = self._gains()
        best = max(range(1, len(gains)), key=gains.__getitem__)
        if gains[best] >= LEAST_GAIN:
            self._next_pause = FIRST_PAUSE if not self._probing else self._next_pause
            return best
        if self._probing:
            return best
        self._pause = self._next_pause
        self._next_pause = min(2 * self._next_pause, LONGEST_PAUSE)
        return 0

    def observe(self, drafted: int, accepted: int) -> None:
        if not drafted:
            return
        self._probing = max(0, self._probing - 1)
        self._accepted = MEMORY * self._accepted + accepted
        self._rejected = MEMORY * self._rejected + (accepted < drafted)
