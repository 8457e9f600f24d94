"""Pre-tokenizers: how a text is cut into words, over which no merge reaches.

``Punctuation`` is among those that are refused: what tokenizers takes for punctuation is that of an old version of Unicode.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from edgespec.runtime.text.bpe.characters import class_text, ranges_of
from edgespec.runtime.text.bpe.errors import UnsupportedTokenizer
from edgespec.runtime.text.bpe.patterns import compile_pattern

Cut = Callable[[list[str], bool], list[str]]
"""Takes words, and whether the first of them is the beginning of the whole text; gives words."""

GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def make_pre_tokenizer(config: dict[str, Any] | None) -> Cut | None:
    """The function that a ``pre_tokenizer`` of tokenizer.json describes; None for a text that stays in one piece."""
    if config is None:
        return None
    kind = config["type"]
    if kind == "Sequence":
        steps = [step for step in map(make_pre_tokenizer, config["pretokenizers"]) if step is not None]
        return functools.partial(_in_turn, steps)
    if kind == "ByteLevel":
        return _byte_level(config.get("add_prefix_space", True), config.get("use_regex", True))
    if kind == "Split":
        pattern = config["pattern"]
        found = compile_pattern(pattern["Regex"]) if "Regex" in pattern else re.compile(re.escape(pattern["String"]))
        return _splitting(found, config["behavior"], config.get("invert", False))
    if kind == "Digits":
        digits = class_text(ranges_of("N"))
        return _splitting(re.compile(f"[{digits}]"), "Isolated" if config.get("individual_digits") else "Contiguous", False)
    if kind == "Metaspace":
        return _metaspace(config)
    raise UnsupportedTokenizer(f"pre-tokenizer {kind}")


def writes_bytes(config: dict[str, Any] | None) -> bool:
    """Whether a pre-tokenizer turns words into GPT-2's letters for bytes.

    Raises:
        UnsupportedTokenizer: it does so before its last step, so that what follows would see the letters.
    """
    if config is None:
        return False
    steps = config["pretokenizers"] if config["type"] == "Sequence" else [config]
    kinds = [writes_bytes(step) if step["type"] == "Sequence" else step["type"] == "ByteLevel" for step in steps]
    if any(kinds[:-1]):
        raise UnsupportedTokenizer("pre-tokenizer ByteLevel before another one")
    return bool(kinds) and kinds[-1]


def _in_turn(steps: Iterable[Cut], words: list[str], begins: bool) -> list[str]:
    for step in steps:
        words = step(words, begins)
    return words


def _byte_level(prefix_space: bool, use_regex: bool) -> Cut:
    find = compile_pattern(GPT2_WORDS).findall if use_regex else None

    def cut(words: list[str], _begins: bool) -> list[str]:
        if prefix_space:
            words = [word if word.startswith(" ") else " " + word for word in words]
        return [part for word in words for part in find(word)] if find else words

    return cut


def _metaspace(config: dict[str, Any]) -> Cut:
    mark = config.get("replacement", "▁")
    scheme = config.get("prepend_scheme", "always" if config.get("add_prefix_space", True) else "never")
    split = _splitting(re.compile(re.escape(mark)), "MergedWithNext", False) if config.get("split", True) else None

    def cut(words: list[str], begins: bool) -> list[str]:
        marked = []
        for index, word in enumerate(words):
            word = word.replace(" ", mark)
            if not word.startswith(mark) and (scheme == "always" or (scheme == "first" and begins and index == 0)):
                word = mark + word
            marked.append(word)
        return split(marked, begins) if split else marked

    return cut


def _splitting(pattern: re.Pattern[str], behaviour: str, invert: bool) -> Cut:
    """Cut at the matches of ``pattern``, or if ``invert`` at what lies between them."""
    if behaviour not in ("Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"):
        raise UnsupportedTokenizer(f"pre-tokenizer Split: {behaviour}")

    def cut(words: list[str], _begins: bool) -> list[str]:
        return [part for word in words for part in _joined(list(_parts(pattern, word, invert)), behaviour) if part]

    return cut


def _parts(pattern: re.Pattern[str], text: str, invert: bool) -> Iterator[tuple[str, bool]]:
    """The text in pieces, and whether each is a match."""
    end = 0
    for match in pattern.finditer(text):
        start, stop = match.span()
        if start == stop:
            continue
        if end < start:
            yield text[end:start], invert
        yield text[start:stop], not invert
        end = stop
    if end < len(text):
        yield text[end:], invert


def _joined(parts: list[tuple[str, bool]], behaviour: str) -> list[str]:
    """What becomes of matches and the pieces between them."""
    if behaviour == "Isolated":
        return [part for part, _ in parts]
    if behaviour == "Removed":
        return [part for part, match in parts if not match]
    joined: list[str] = []
    if behaviour == "MergedWithNext":
        parts = parts[::-1]
    before = False
    for index, (part, match) in enumerate(parts):
        together = index > 0 and (match == before if behaviour == "Contiguous" else match and not before)
        if together:
            joined[-1] = part + joined[-1] if behaviour == "MergedWithNext" else joined[-1] + part
        else:
            joined.append(part)
        before = match
    return joined[::-1] if behaviour == "MergedWithNext" else joined
