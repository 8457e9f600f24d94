"""Added tokens: texts that are one token wherever they stand, special ones among them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from edgespec.runtime.text.bpe.characters import WHITE_SPACE
from edgespec.runtime.text.bpe.errors import UnsupportedTokenizer

LEADING = re.compile(f"[{re.escape(WHITE_SPACE)}]*")
TRAILING = re.compile(f"[{re.escape(WHITE_SPACE)}]*\\Z")


class AddedTokens:
    """Finds added tokens in a text. Of several that begin at one place the longest counts."""

    def __init__(self, entries: Iterable[dict[str, Any]]) -> None:
        self._by_text = {entry["content"]: entry for entry in entries if entry["content"]}
        for text, entry in self._by_text.items():
            if entry.get("single_word"):
                raise UnsupportedTokenizer(f"added token {text!r} with single_word")
        texts = sorted(self._by_text, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, texts))) if texts else None

    def split(self, text: str) -> Iterator[tuple[str, int | None]]:
        """Pieces of ``text``; those that are a token with its id."""
        end = 0
        for match in self._pattern.finditer(text) if self._pattern else ():
            entry = self._by_text[match[0]]
            start, stop = match.span()
            if entry.get("lstrip"):
                found = TRAILING.search(text, end, start)
                start = found.start() if found else start
            if entry.get("rstrip"):
                found = LEADING.match(text, stop)
                stop = found.end() if found else stop
            if end < start:
                yield text[end:start], None
            yield text[start:stop], entry["id"]
            end = stop
        if end < len(text):
            yield text[end:], None
