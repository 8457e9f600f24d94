"""Whether a drafter pays that needs no model but many rows of the pass."""

from __future__ import annotations

from collections.abc import Callable

from edgespec.runtime.tuning.controller import LEAST_GAIN

START_GAIN = 1.3  # what is hoped for at first: the pool of n-grams has to fill before anything can come of it
WEIGHT = 10.0  # of the hope, in rounds
MEMORY = 0.97  # weight of the past after a round
IDLE = 0.99  # the same after a round without a proposal


class Payoff:
    """Accepted tokens per round against the cost of the rows, in milliseconds of a pass of so many tokens; without costs it
    always pays."""

    def __init__(self, pass_ms: Callable[[int], float] | None, start: float = START_GAIN) -> None:
        self._pass_ms = pass_ms
        self._start = start
        self._surplus = self._rounds = 0.0

    def for_another_text(self, pass_ms: Callable[[int], float] | None) -> Payoff:
        """One whose hope is halfway between what this one has seen and what is hoped for at first."""
        seen = self._start + (self._surplus / self._rounds if self._rounds else 0.0)
        return Payoff(pass_ms, (START_GAIN + min(seen, START_GAIN)) / 2)

    @property
    def gain(self) -> float:
        """Expected speed of a round with a tree over plain decoding."""
        return self._start + self._surplus / (self._rounds + WEIGHT)

    def pays(self) -> bool:
        """Whether the next tree is expected to be worth its rows."""
        return self._pass_ms is None or self.gain >= LEAST_GAIN

    def observe(self, nodes: int, accepted: int) -> None:
        """A tree of ``nodes`` nodes gave ``accepted`` tokens and the target's own."""
        self._surplus, self._rounds = MEMORY * self._surplus, MEMORY * self._rounds + 1
        if self._pass_ms is not None:
            self._surplus += (1 + accepted) * self._pass_ms(1) / self._pass_ms(1 + nodes) - self._start

    def rest(self) -> None:
        """A round without a tree: what was learnt fades, so that another try is due some time."""
        self._surplus, self._rounds = IDLE * self._surplus, IDLE * self._rounds
