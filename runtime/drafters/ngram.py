"""Prompt look-up: propose what followed the last time when the text's last few tokens occurred (Saxena 2023).

Good where a text repeats itself or its prompt: summaries, code, edits. It costs microseconds, so a miss costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.runtime.drafters import Drafter
from edgespec.tree import DraftTree

LONGEST, SHORTEST = 4, 2


class NGram(Drafter):
    """An index from the n-grams of the context to the position after their latest occurrence.

    An n-gram is entered once the token behind it is known, so the context's own end never finds itself.
    """

    name = "ngram"

    def __init__(self) -> None:
        self._index: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def propose(self, context: Sequence[int], max_tokens: int) -> DraftTree:
        return DraftTree.chain(self.look_up(context, (), max_tokens, SHORTEST))

    def look_up(self, context: Sequence[int], ahead: Sequence[int], count: int, shortest: int) -> list[int]:
        """Up to ``count`` tokens to follow ``context`` and the guessed tokens ``ahead`` of it.

        The longest n-gram that occurred before decides, down to ``shortest`` tokens. Where what followed it runs into the
        end of the context it goes on with the guess itself, so a loop in the text is proposed as a loop.
        """
        if count < 1:
            return []
        self._extend(context)
        tail = [*context[-LONGEST:], *ahead][-LONGEST:]
        for size in range(min(LONGEST, len(tail)), shortest - 1, -1):
            position = self._index.get(tuple(tail[-size:]))
            if position is not None:
                return self._copy(context, ahead, position, count)
        return []

    def _extend(self, context: Sequence[int]) -> None:
        for end in range(max(self._indexed, 1), len(context)):
            for size in range(1, min(LONGEST, end) + 1):
                self._index[tuple(context[end - size : end])] = end
        self._indexed = len(context)

    @staticmethod
    def _copy(context: Sequence[int], ahead: Sequence[int], position: int, count: int) -> list[int]:
        known = len(context)
        more = list(ahead)
        for index in range(position, position + count):
            more.append(context[index] if index < known else more[index - known])
        return more[len(ahead) :]
