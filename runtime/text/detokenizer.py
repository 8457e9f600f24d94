"""Text from a stream of ids that never shows half a character.

A token can be part of a character, and a token's text can depend on the one before it (a space at a text's start is
dropped). So a window of the last few ids is decoded with and without the new one, and the difference is the new text,
held back while it ends in the mark for an incomplete character.
"""

from __future__ import annotations

from edgespec.runtime.text.tokenizer import Tokenizer

INCOMPLETE = "\ufffd"
LONGEST_WAIT = 16  # tokens; no character is longer, so what is still incomplete then is not a character


class Detokenizer:
    """``push`` ids and get text; at the end ``flush``. The parts together are the text of all ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._shown = 0
        """How many ids of the window have been shown; the others wait for the rest of their character."""
        self._shown_text = ""

    def push(self, token: int) -> str:
        """The text that ``token`` completes, often that of the token, empty while a character is incomplete."""
        self._window.append(token)
        text = self._tokenizer.decode(self._window)
        if text.endswith(INCOMPLETE) and len(self._window) - self._shown < LONGEST_WAIT:
            return ""
        return self._show(text)

    def flush(self) -> str:
        """What is still held back, with the mark for an incomplete character where the text ends within one."""
        return self._show(self._tokenizer.decode(self._window)) if self._shown < len(self._window) else ""

    def _show(self, text: str) -> str:
        new = text[len(self._shown_text) :]
        if new:
            # The last shown tokens stay as context for the next; a special token has no text and is no context.
            self._window = self._window[self._shown :]
            self._shown_text = self._tokenizer.decode(self._window)
        self._shown = len(self._window)
        return new
