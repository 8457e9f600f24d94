"""The end of a long text, for a draft model whose cache is smaller than the text."""

from __future__ import annotations

from collections.abc import Sequence


class ContextWindow:
    """The draft sees the context from a token on that stays for many rounds. Once its cache is full it reads half a cache anew:
    a few wide passes."""

    def __init__(self) -> None:
        self._first = 0

    def see(self, context: Sequence[int], room: int) -> tuple[Sequence[int], bool]:
        """At most ``room`` tokens of the context's end, and whether they begin at another token than before."""
        moved = len(context) - self._first > room
        if moved:
            self._first = len(context) - max(room // 2, 1)
        return (context[self._first :] if self._first else context), moved
