"""How many tokens to draft: fixed, or the number that pays best under measured costs and the running acceptance.

If the token at position i is accepted with probability a_i, given those before it, a chain of K drafts gives
E(K) = 1 + a_1 + a_1 a_2 + ... tokens per round (with one a for all, equation 1 of Leviathan et al. 2023) and takes
C(K) = target(1 + K) + draft(K) milliseconds. The best K has the most tokens per millisecond; K = 0 is plain decoding.

A draft that knows how sure it is may end earlier (:class:`Gate`). In the long run the most tokens per millisecond come from taking
every step that brings at least as many as its time brings elsewhere, at the rate R of the best K: one more row of the pass pays if
the chance that it is accepted is at least R times what it costs. This is the rule of renewal-reward processes.

No K may gain two per cent. Then nothing is drafted, and what was learnt fades until it is worth another try. What tries and bad luck may
cost is bounded: losses against plain decoding are drawn from an account that gains and a small share of the time fill again, and a draft
is only made while its worst case is covered. The account is small, so that a text that turns bad is soon noticed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Protocol

from edgespec.runtime.tuning.acceptance import HINT, Acceptance

LEAST_GAIN = 1.02  # over plain decoding; less is within the noise of a shared machine
IDLE = 0.98  # weight of what is known after a round in which nothing was learnt
# What may be lost against plain decoding, in passes of one token: at the start, after gains, and besides as a share of the time.
FIRST_CREDIT, MOST_CREDIT = 6.0, 30.0
LOSS_SHARE = 0.015
REFRESH = 16  # rounds after which costs are read anew


@dataclasses.dataclass(frozen=True)
class Plan:
    """How many tokens to ask a drafter for, and the speed over plain decoding that is expected of that, NaN where nobody knows."""

    length: int
    gain: float


class Gate(Protocol):
    """Tells a drafter that makes one token after the other when to stop. It is told how sure the drafter is of each.

    A decision depends on confidences alone. Where tokens are drawn, the confidence is the largest probability of q, which is known
    before the draw: keeping or dropping a token for what was drawn would change what it was drawn from.
    """

    def keeps(self, confidence: float) -> bool:
        """Whether the token at the next position, just made, is worth a row of the pass. If not it is dropped, and the draft ends."""

    def goes_on(self) -> bool:
        """Whether another token is worth making."""


class LengthPolicy(Protocol):
    """Says how many tokens a drafter should propose in the next round."""

    def plan(self) -> Plan: ...

    def observe(self, wanted: int, offered: int, accepted: int) -> None:
        """A round asked this drafter for ``wanted`` tokens, verified ``offered`` and accepted the first ``accepted``. With none
        offered, the round went on to another drafter."""

    @property
    def gate(self) -> Gate | None: ...

    @property
    def off(self) -> str | None:
        """Why it currently drafts nothing, None while it does."""


class FixedLength:
    """Always the same number."""

    gate: Gate | None = None
    off: str | None = None

    def __init__(self, length: int) -> None:
        self._plan = Plan(length, math.nan)

    def plan(self) -> Plan:
        return self._plan

    def observe(self, wanted: int, offered: int, accepted: int) -> None:
        pass


class AutoLength:
    """The best number for one drafter. It may serve several generations: what it learnt in one holds for the next.

    Args:
        target_ms: cost of a target pass of n tokens, padding included.
        draft_ms: cost of making n drafted tokens.
        most: largest number allowed.
        acceptance: what is known of the drafter.
    """

    def __init__(
        self, target_ms: Callable[[int], float], draft_ms: Callable[[int], float], most: int, acceptance: Acceptance | None = None
    ) -> None:
        self._target_ms, self._draft_ms = target_ms, draft_ms
        self._most = most
        self.acceptance = acceptance or Acceptance(most)
        self._credit = FIRST_CREDIT  # in passes of one token, so that it outlives a change of the costs
        self._rounds = 0
        self._heard = True
        self._off = self._gated = False
        self._read_costs()
        self._chances, self._kept_if_made = self.acceptance.by_position(), self.acceptance.kept()
        self._rate = 1 / self._target[0]
        # Of the proposal that is being made: how sure the drafter was of each token, how many of them were kept, and the chance that
        # all of these are right.
        self._confidences: list[float] = []
        self._kept, self._reached = 0, 1.0

    def for_another_text(self) -> AutoLength:
        """One that starts with what this one knows, as a hint."""
        return AutoLength(self._target_ms, self._draft_ms, self._most, self.acceptance.hint(self._most))

    @property
    def off(self) -> str | None:
        if not self._off:
            return None
        if not self.acceptance.known:
            return f"its steps cost too much here for a gain of {LEAST_GAIN - 1:.0%} over plain decoding, even if all were accepted"
        return f"at an acceptance of {self.acceptance.overall:.0%} no draft length gains {LEAST_GAIN - 1:.0%} over plain decoding"

    @property
    def gate(self) -> Gate:
        return self

    def plan(self) -> Plan:
        """For the next round. It may be that another drafter is asked then."""
        self._rounds += 1
        if self._rounds % REFRESH == 0:
            self._read_costs()
        if not self._heard:
            self.acceptance.fade(IDLE)
        self._heard = False
        # Time alone fills the account no further than it was at the start.
        self._credit = max(self._credit, min(self._credit + LOSS_SHARE, FIRST_CREDIT))
        self._confidences, self._kept, self._reached = [], 0, 1.0
        rates = self._rates()
        best = max(range(len(rates)), key=rates.__getitem__)
        self._rate = rates[best]
        gain = rates[best] / rates[0]
        if best and self._gated:
            best = self._most  # It ends by itself where the next token does not pay.
        # The worst case is that all are rejected.
        best = max(count for count in range(best + 1) if self._cost(count) / self._target[0] - 1 <= max(self._credit, 0.0))
        self._off = gain < LEAST_GAIN or not best
        return Plan(0 if self._off else best, gain)

    def keeps(self, confidence: float) -> bool:
        self._confidences.append(confidence)
        chance = self._reached * self.acceptance.of_confidence(confidence)
        if not self._pays(chance, self._kept + 1, made=True):
            return False
        self._reached, self._kept = chance, self._kept + 1
        return True

    def goes_on(self) -> bool:
        return self._kept < self._most and self._pays(self._reached * self._chances[self._kept], self._kept + 1, made=False)

    def observe(self, wanted: int, offered: int, accepted: int) -> None:
        if not offered and not self._confidences:
            return  # It had nothing to say, which cost nothing.
        self._heard, self._gated = True, bool(self._confidences)
        made = max(offered, len(self._confidences))
        self.acceptance.observe(wanted, offered, accepted, self._confidences)
        spent = self._target[min(offered, self._most)] + self._draft[min(made, self._most)]
        self._credit = min(MOST_CREDIT, self._credit + 1 + accepted - spent / self._target[0])
        if self._credit < 0:
            self.acceptance.fade(HINT)  # What is known led to losses.

    def _read_costs(self) -> None:
        self._target = [self._target_ms(1 + count) for count in range(self._most + 1)]
        self._draft = [self._draft_ms(count) for count in range(self._most + 1)]

    def _cost(self, count: int) -> float:
        return self._target[count] + self._draft[count]

    def _rates(self) -> list[float]:
        """Tokens per millisecond for every number of tokens asked for, in one go: it is asked for in every round.

        A drafter may have fewer tokens than it is asked for: ``ends`` sums up what rounds cost that ended before.
        """
        self._chances, self._kept_if_made = self.acceptance.by_position(), self.acceptance.kept()
        rates, tokens, right, there, ends = [1 / self._target[0]], 1.0, 1.0, 1.0, 0.0
        for count, (chance, offer) in enumerate(zip(self._chances, self.acceptance.offers(), strict=True), 1):
            ends += there * (1 - offer) * (self._target[count - 1] + self._draft[count])
            there *= offer
            right *= offer * chance
            tokens += right
            rates.append(tokens / (ends + there * self._cost(count)))
        return rates

    def _pays(self, chance: float, position: int, made: bool) -> bool:
        """Whether a token at ``position``, right with ``chance`` together with all before it, brings more than its time does elsewhere,
        alone or with some after it.

        After it because costs come in steps: where passes have even widths, every second row is free. A token that is ``made`` costs its
        row only; one that is not may turn out not to be worth a row.
        """
        there = 1.0 if made else self._kept_if_made[position - 1]
        value, cost = there * chance, there * (self._target[position] - self._target[position - 1])
        if not made:
            cost += self._draft[position] - self._draft[position - 1]
        while value < self._rate * cost:
            if position == self._most:
                return False
            cost += there * (self._draft[position + 1] - self._draft[position])
            there *= self._kept_if_made[position]
            chance *= self._chances[position]
            cost += there * (self._target[position + 1] - self._target[position])
            value += there * chance
            position += 1
        return True
