"""Classes of characters by Unicode's general categories, as ranges and as text for a class of ``re``, which has no ``\\p{...}``.

Categories are those of Python's own Unicode tables; characters that are younger count as unassigned.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable

Ranges = tuple[tuple[int, int], ...]
LAST = 0x10FFFF
# White_Space of Unicode, which \s means to the regex engines of tokenizers. Python's \s has four control characters more.
SPACES: Ranges = (
    (0x09, 0x0D), (0x20, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
    (0x205F, 0x205F), (0x3000, 0x3000),
)  # fmt: skip
WHITE_SPACE = "".join(chr(code) for first, last in SPACES for code in range(first, last + 1))
ASSIGNED = ((0, 0x3FFFF), (0xE0000, 0xE0FFF))  # Beyond these planes there are no characters but private ones.
PRIVATE = ((0xF0000, 0xFFFFD), (0x100000, 0x10FFFD))


@functools.cache
def category_ranges() -> dict[str, Ranges]:
    """Ranges of each two-letter category, in order."""
    found: dict[str, list[tuple[int, int]]] = {}
    category = unicodedata.category
    for first, last in ASSIGNED:
        start, current = first, category(chr(first))
        for code in range(first + 1, last + 1):
            kind = category(chr(code))
            if kind != current:
                found.setdefault(current, []).append((start, code - 1))
                start, current = code, kind
        found.setdefault(current, []).append((start, last))
    found.setdefault("Co", []).extend(PRIVATE)
    found.pop("Cn")  # is what the others leave, see ranges_of
    return {name: tuple(ranges) for name, ranges in found.items()}


@functools.cache
def ranges_of(name: str) -> Ranges:
    """Ranges of a category such as ``Lu``, or of all that begin with a letter such as ``L``.

    Raises:
        KeyError: there is none of this name.
    """
    known = category_ranges()
    names = [category for category in known if category == name or (len(name) == 1 and category[0] == name)]
    assigned = united(*known.values())
    if name == "Cn":
        return complement(assigned)
    if not names:
        raise KeyError(name)
    parts = [known[category] for category in names]
    return united(*parts, complement(assigned)) if name == "C" else united(*parts)


def united(*parts: Iterable[tuple[int, int]]) -> Ranges:
    """All of the ranges, sorted, with neighbours joined."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(item for part in parts for item in part):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return tuple(joined)


def complement(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Every other character. ``ranges`` are sorted and apart."""
    gaps, start = [], 0
    for first, last in ranges:
        if start < first:
            gaps.append((start, first - 1))
        start = last + 1
    return tuple([*gaps, (start, LAST)] if start <= LAST else gaps)


def class_text(ranges: Iterable[tuple[int, int]]) -> str:
    """The inside of a class of ``re`` with these ranges."""
    return "".join(re.escape(chr(first)) if first == last else f"{re.escape(chr(first))}-{re.escape(chr(last))}" for first, last in ranges)
