"""Where the end of a text occurred before: in the text itself, or in a corpus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

LONGEST = 4  # tokens that the index knows an n-gram by
MOST_MATCH = 16  # tokens that a match is followed back for
OCCURRENCES = 8  # the latest of an n-gram, which are looked at


class Match(NamedTuple):
    """An occurrence of the last ``length`` tokens of a text; what followed it begins at ``position`` of ``where``."""

    where: Sequence[int]
    position: int
    length: int


class TextIndex:
    """From the n-grams of a growing text, of one token to ``LONGEST``, to the positions behind their occurrences.

    An n-gram is entered once the token behind it is known, so the text's own end never finds itself.
    """

    def __init__(self) -> None:
        self._latest: dict[tuple[int, ...], int] = {}
        self._before: list[list[int]] = [[0] for _ in range(LONGEST)]
        """For each size and position that of the occurrence before; 0 for none, since nothing stands before the text."""

    def extend(self, text: Sequence[int]) -> None:
        """Enter what is new of ``text``."""
        latest = self._latest
        for end in range(len(self._before[0]), len(text)):
            for size, before in enumerate(self._before, start=1):
                ngram = tuple(text[max(end - size, 0) : end])
                # Shorter ones than their size, at the beginning, are never looked up as such.
                before.append(latest.get(ngram, 0) if len(ngram) == size else 0)
                if len(ngram) == size:
                    latest[ngram] = end

    def latest(self, tail: Sequence[int], shortest: int) -> int | None:
        """The position behind the latest occurrence of the longest n-gram, from ``LONGEST`` to ``shortest`` tokens, that ends ``tail``."""
        for size in range(min(LONGEST, len(tail)), shortest - 1, -1):
            position = self._latest.get(tuple(tail[-size:]))
            if position is not None:
                return position
        return None

    def matches(self, text: Sequence[int], shortest: int) -> list[Match]:
        """The latest occurrences of the longest n-gram that ends ``text``, the latest first, followed back as far as they agree."""
        for size in range(min(LONGEST, len(text)), shortest - 1, -1):
            position = self._latest.get(tuple(text[-size:]), 0)
            if position:
                found: list[Match] = []
                while position and len(found) < OCCURRENCES:
                    found.append(Match(text, position, agreement(text, position, text, size)))
                    position = self._before[size - 1][position]
                return found
        return []


def agreement(where: Sequence[int], position: int, text: Sequence[int], known: int) -> int:
    """How many tokens before ``position`` of ``where`` equal the last of ``text``, ``known`` of them without looking."""
    most = min(MOST_MATCH, position, len(text))
    while known < most and where[position - known - 1] == text[-known - 1]:
        known += 1
    return known
