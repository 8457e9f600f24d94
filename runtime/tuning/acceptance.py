"""How likely a drafted token is to be accepted: running estimates by its position and by the draft's own confidence.

Acceptance is not the same everywhere: a draft head is worse at its third token than at its first, and a look-up that got its first
token right mostly gets the next ones right. Each position has its own estimate, given that all before it were accepted. Those behind
the first lean on what they have in common, and all of them at the start, or when there was no trial for long, on an optimistic guess, so
that a drafter gets its chance and is soon outvoted. Of a draft the export has mostly measured how often it is right on the whole, so the
guess need not be far above that.

The draft's own probability of its token says more than the position does. It is only a hint, since drafts are too sure of
themselves or not sure enough, so what it is worth is learnt too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MEMORY = 0.985  # weight of the past after a trial: about the last seventy count
MOST_TRIALS = 1 / (1 - MEMORY) + 1e-6  # that a weight can amount to
HINT = 0.3  # weight of what was learnt on another text
STALE = 0.99  # and after a round in which there was no trial
OPTIMISM, OPTIMISM_WEIGHT = 0.95, 2.0  # assumed of a drafter that is not known, with the weight of so many trials
LEAN = 12.0  # trials as which those of the other positions count
HOPE = 0.2  # by which a text may be easier than texts on the whole
TRUST = 5.0  # and as which a draft's own confidence does
CONFIDENCES = 10  # classes of the draft's confidence


class Share:
    """A probability estimated from trials, of which recent ones weigh more."""

    __slots__ = ("hits", "trials")

    def __init__(self, hits: float = 0.0, trials: float = 0.0) -> None:
        self.hits, self.trials = hits, trials

    def add(self, hit: bool) -> None:
        self.hits = MEMORY * self.hits + hit
        self.trials = MEMORY * self.trials + 1

    def fade(self, share: float) -> None:
        """Let what was seen so far count less."""
        self.hits *= share
        self.trials *= share

    def estimate(self, prior: float, weight: float) -> float:
        """The share of hits, where ``prior`` counts as ``weight`` trials more."""
        return (self.hits + prior * weight) / (self.trials + weight)


class Acceptance:
    """Of one drafter, for positions 1 to ``most``. ``usual`` is how often its tokens are right on the whole, where that is known."""

    def __init__(self, most: int, usual: float | None = None) -> None:
        self._guess = OPTIMISM if usual is None else min(usual + HOPE, OPTIMISM)
        self._all, self._behind = Share(), Share()
        self._accepted = [Share() for _ in range(most)]
        self._offered = [Share() for _ in range(most)]
        self._kept = [Share() for _ in range(most)]
        self._by_confidence = [Share() for _ in range(CONFIDENCES)]

    @property
    def overall(self) -> float:
        """Probability that a drafted token is accepted, whatever its position."""
        return self._all.estimate(self._guess, OPTIMISM_WEIGHT)

    @property
    def known(self) -> bool:
        """Whether it is more than a guess."""
        return self.tried or self._guess < OPTIMISM

    @property
    def tried(self) -> bool:
        """Whether any token was ever verified."""
        return self._all.trials > 0

    def by_position(self) -> list[float]:
        """Probability that the token at each position is accepted, given that those before it were; [most]."""
        behind = self._behind.estimate(self._guess, OPTIMISM_WEIGHT)
        first = [share.estimate(self._guess, OPTIMISM_WEIGHT) for share in self._accepted[:1]]
        return [*first, *(share.estimate(behind, LEAN) for share in self._accepted[1:])]

    def offers(self) -> list[float]:
        """Probability that the drafter has a token at each position when it is asked, given one before it."""
        return [share.estimate(1.0, OPTIMISM_WEIGHT) for share in self._offered]

    def kept(self) -> list[float]:
        """Probability that the token at each position, once it is made, is found worth a row of the pass."""
        return [share.estimate(1.0, OPTIMISM_WEIGHT) for share in self._kept]

    def of_confidence(self, confidence: float) -> float:
        """Probability that a token is accepted that the draft gives this probability, given that those before it were."""
        return self._by_confidence[_class(confidence)].estimate(confidence, TRUST)

    def observe(self, wanted: int, offered: int, accepted: int, confidences: Sequence[float] = ()) -> None:
        """A round: ``wanted`` tokens were asked for, ``offered`` came, and the first ``accepted`` of them were right. ``confidences`` are
        the draft's own probabilities of those that it made."""
        for position in range(min(wanted, offered + 1, len(self._offered))):
            self._offered[position].add(position < offered)
        for position in range(min(len(confidences), len(self._kept))):
            self._kept[position].add(position < offered)
        tried = min(offered, accepted + 1, len(self._accepted))
        for position in range(tried):
            right = position < accepted
            self._all.add(right)
            self._accepted[position].add(right)
            if position:
                self._behind.add(right)
            if position < len(confidences):
                self._by_confidence[_class(confidences[position])].add(right)
        for share in (*self._accepted[tried:], *([self._behind] if tried < 2 else ())):
            share.fade(STALE)

    def fade(self, share: float) -> None:
        for part in self._parts().values():
            for estimate in part:
                estimate.fade(share)

    def as_counts(self) -> dict[str, Any]:
        """What was seen, in plain JSON types."""
        return {name: [[share.hits, share.trials] for share in shares] for name, shares in self._parts().items()}

    @classmethod
    def of_counts(cls, counts: dict[str, Any]) -> Acceptance:
        """What :meth:`as_counts` gave.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: it is something else.
        """
        found = cls(len(counts["accepted"]))
        for name, shares in found._parts().items():
            for share, (hits, trials) in zip(shares, counts[name], strict=True):
                if not 0 <= float(hits) <= float(trials) <= MOST_TRIALS:
                    raise ValueError(f"{name}: {hits} of {trials}")
                share.hits, share.trials = float(hits), float(trials)
        return found

    def hint(self, most: int) -> Acceptance:
        """What this says of another text, for ``most`` positions."""
        found = Acceptance(most)
        found._guess = self._guess
        for name, shares in found._parts().items():
            for share, known in zip(shares, self._parts()[name], strict=False):
                share.hits, share.trials = HINT * known.hits, HINT * known.trials
        return found

    def _parts(self) -> dict[str, list[Share]]:
        return {
            "all": [self._all, self._behind],
            "accepted": self._accepted,
            "offered": self._offered,
            "kept": self._kept,
            "by_confidence": self._by_confidence,
        }


def _class(confidence: float) -> int:
    return min(int(confidence * CONFIDENCES), CONFIDENCES - 1)
