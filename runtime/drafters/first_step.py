"""What having a head's first step ready costs it, and which passes of the target should make it.

Behind n-grams a head is asked in some rounds only. A pass makes the step whether or not the head is asked next. A head whose rows are
missing makes them in a session of its own, which takes longer, but is only needed when the head is asked.
"""

from __future__ import annotations

from edgespec.runtime.drafters.chances import WEIGHT, Shares

MEMORY = 0.97  # weight of the past after a round
EVEN = 0.5  # how often the head is asked behind another drafter's tokens, until that is known


class FirstStepUse:
    """Learns from the rounds how often the step is needed.

    Args:
        inside_ms: what the step adds to a pass of the target.
        apart_ms: a step of the head's own graph.
    """

    def __init__(self, inside_ms: float, apart_ms: float) -> None:
        self._inside_ms, self._apart_ms = inside_ms, apart_ms
        self._asked_next = Shares([EVEN])
        self._spent_ms, self._rounds = WEIGHT * inside_ms, WEIGHT  # as if it had been needed every time
        self._others_before = False

    @property
    def round_ms(self) -> float:
        """What it costs for each round in which the head is asked."""
        return self._spent_ms / self._rounds

    @property
    def pays_behind_others(self) -> bool:
        """Whether a pass should make it that verifies another drafter's tokens."""
        return self._asked_next.shares[0] * self._apart_ms >= self._inside_ms

    def observe(self, *, asked: bool, apart: bool, inside: bool) -> None:
        """A round is over.

        Args:
            asked: the head was asked.
            apart: its own graph made the first step of this round.
            inside: the target's pass made one for the next.
        """
        if self._others_before:
            self._asked_next.fade(MEMORY)
            self._asked_next.count(0, asked)
        self._others_before = not asked
        self._spent_ms = MEMORY * self._spent_ms + inside * self._inside_ms + apart * self._apart_ms
        self._rounds = MEMORY * self._rounds + asked
