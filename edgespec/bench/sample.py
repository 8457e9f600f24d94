"""One answer with the origin of each of its pieces: the drafter whose token was accepted there, or the target."""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgespec.runtime.stream import Stream

TARGET = "target"


@dataclasses.dataclass(frozen=True)
class Origin:
    """Text as it came, and who proposed the first of its tokens that was drafted: a drafter's name, "guess" or "seed" as in the
    statistics, or :data:`TARGET` if none was."""

    text: str
    name: str


def answer_with_origins(stream: Stream) -> list[Origin]:
    """Run a generation to its end.

    The counters of accepted tokens by drafter and position, which have grown when a round's pieces come, say in order who drafted what
    was accepted in the round.
    """
    seen: collections.Counter[tuple[int, str]] = collections.Counter()
    waiting: collections.deque[str] = collections.deque()
    found = []
    for piece in stream:
        now = collections.Counter(
            {
                (position, drafter): count
                for drafter, counts in stream.stats.accepted_by_drafter.items()
                for position, count in counts.items()
            }
        )
        waiting.extend(drafter for _, drafter in sorted((now - seen).elements()))
        seen = now
        names = [waiting.popleft() if drafted else TARGET for drafted in piece.drafted]
        if piece.text:
            found.append(Origin(piece.text, next((name for name in names if name != TARGET), TARGET)))
    return found
