"""Regular expressions of tokenizer files (Oniguruma's syntax) as patterns of ``re``.

Differences that matter in such files: ``\\p{L}`` and its like, ``\\s`` and ``\\d`` by Unicode, line anchors. Everything else that the
two do not share is refused.
"""

from __future__ import annotations

import functools
import re

from edgespec.runtime.text.bpe.characters import SPACES, Ranges, class_text, complement, ranges_of, united
from edgespec.runtime.text.bpe.errors import UnsupportedTokenizer

PROPERTY = re.compile(r"\\([pP])\{(\^?)([A-Za-z_ ]+)\}")
CODE = re.compile(r"\\x\{([0-9A-Fa-f]{1,6})\}|\\x([0-9A-Fa-f]{2})|\\u([0-9A-Fa-f]{4})")
GROUP = re.compile(r"\(\?(?:[:=!>]|<[=!]|i:|-i:)|\((?!\?)")
PLAIN_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a", "0": "\0", "e": "\x1b"}
LONG_NAMES = {"Letter": "L", "Number": "N", "Punctuation": "P", "Symbol": "S", "Mark": "M", "Separator": "Z", "Other": "C"}


@functools.lru_cache(maxsize=32)
def compile_pattern(source: str) -> re.Pattern[str]:
    """``source`` as a pattern of ``re`` that finds the same.

    Raises:
        UnsupportedTokenizer: a part of it cannot be said with ``re``.
    """
    try:
        return re.compile(_Translator(source).translated())
    except (re.error, IndexError, OverflowError) as error:
        raise UnsupportedTokenizer(f"regular expression {source!r}: {error}") from error


class _Translator:
    """Walks once through a source; ``position`` is the next character."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.position = 0

    def translated(self) -> str:
        parts = []
        while self.position < len(self.source):
            parts.append(self._item())
        return "".join(parts)

    def _item(self) -> str:
        char = self.source[self.position]
        if char == "\\":
            found = self._escape()
            return re.escape(found) if isinstance(found, str) else f"[{class_text(found)}]"
        if char == "[":
            return f"[{class_text(self._class())}]"
        if char == "(":
            group = GROUP.match(self.source, self.position)
            if group is None:
                raise self._refused("this kind of group")
            self.position = group.end()
            return group[0]
        self.position += 1
        return {"^": "(?m:^)", "$": "(?m:$)"}.get(char, char)

    def _escape(self) -> str | Ranges:
        """One character, or a class."""
        found = PROPERTY.match(self.source, self.position)
        if found:
            self.position = found.end()
            name = found[3]
            try:
                ranges = ranges_of(LONG_NAMES.get(name, name))
            except KeyError:
                raise self._refused(f"property {name}") from None
            return complement(ranges) if (found[1] == "P") != bool(found[2]) else ranges
        code = CODE.match(self.source, self.position)
        if code:
            self.position = code.end()
            return chr(int(code[1] or code[2] or code[3], 16))
        char = self.source[self.position + 1]
        self.position += 2
        if char.lower() in "sdw":
            kinds = {"s": SPACES, "d": ranges_of("Nd"), "w": united(*map(ranges_of, ("L", "M", "Nd", "Pc")))}
            ranges = kinds[char.lower()]
            return complement(ranges) if char.isupper() else ranges
        if char in PLAIN_ESCAPES:
            return PLAIN_ESCAPES[char]
        if char.isalnum():
            raise self._refused(f"\\{char}")
        return char

    def _class(self) -> Ranges:
        """A class in brackets, with all that is nested in it."""
        self.position += 1
        negated = self.source[self.position] == "^"
        self.position += negated
        found: list[Ranges] = []
        first = True
        while first or self.source[self.position] != "]":
            found.append(self._member())
            first = False
        self.position += 1
        ranges = united(*found)
        return complement(ranges) if negated else ranges

    def _member(self) -> Ranges:
        """A range, a character, an escape or a class within a class."""
        if self.source.startswith("[:", self.position) or self.source.startswith("&&", self.position):
            raise self._refused("[: or && in a class")
        if self.source[self.position] == "[":
            return self._class()
        low = self._character()
        if not isinstance(low, str):
            return low
        rest = self.source[self.position : self.position + 3]
        if rest[:1] != "-" or rest[1:2] in ("]", "[") or (rest[1:2] == "\\" and rest[2:3] in "pPsSdDwW"):
            return ((ord(low), ord(low)),)
        self.position += 1
        high = self._character()
        if not isinstance(high, str) or high < low:
            raise self._refused("a range without an end")
        return ((ord(low), ord(high)),)

    def _character(self) -> str | Ranges:
        if self.source[self.position] == "\\":
            return self._escape()
        self.position += 1
        return self.source[self.position - 1]

    def _refused(self, what: str) -> UnsupportedTokenizer:
        return UnsupportedTokenizer(f"regular expression {self.source!r}: {what} near position {self.position}")
