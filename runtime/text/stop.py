"""Stop texts in a stream: nothing of a stop text is shown, and what might become one is held back."""

from __future__ import annotations

from collections.abc import Sequence


class StopTexts:
    """Looks for the first of ``texts`` in pieces of text that arrive one by one."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = tuple(texts)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """What may be shown now, and whether a stop text was completed, in which case the text ends there."""
        held = self._held + text
        found = [position for stop in self._texts if (position := held.find(stop)) >= 0]
        if found:
            self._held = ""
            return held[: min(found)], True
        keep = max((_overlap(held, stop) for stop in self._texts), default=0)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep], False

    def flush(self) -> str:
        """What was held back, once no more text comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that ``stop`` begins with."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)
