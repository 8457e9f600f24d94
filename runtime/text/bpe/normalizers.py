"""Normalizers: what a text is changed to before it is cut.

Python's tables of Unicode are younger than those of tokenizers: of marks that neither knew before version 12 the order in NFC may differ.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Callable
from typing import Any

from edgespec.runtime.text.bpe.characters import WHITE_SPACE
from edgespec.runtime.text.bpe.errors import UnsupportedTokenizer
from edgespec.runtime.text.bpe.patterns import compile_pattern

Change = Callable[[str], str]


def make_normalizer(config: dict[str, Any] | None) -> Change | None:
    """The function that a ``normalizer`` of tokenizer.json describes; None where there is nothing to do."""
    if config is None:
        return None
    kind = config["type"]
    if kind == "Sequence":
        steps = [step for step in map(make_normalizer, config["normalizers"]) if step is not None]
        return (lambda text: functools.reduce(lambda value, step: step(value), steps, text)) if steps else None
    if kind in ("NFC", "NFD", "NFKC", "NFKD"):
        return functools.partial(unicodedata.normalize, kind)
    if kind == "Replace":
        return make_replace(config)
    if kind == "Prepend":
        prefix: str = config["prepend"]
        return lambda text: prefix + text if text else text
    if kind == "Lowercase":
        return lambda text: "".join(char.lower() for char in text)  # character by character: no final sigma
    if kind == "Strip":
        left, right = config["strip_left"], config["strip_right"]
        return lambda text: _stripped(text, left, right)
    raise UnsupportedTokenizer(f"normalizer {kind}")


def make_replace(config: dict[str, Any]) -> Change:
    """Replace, which normalizers and decoders share: a text or an expression by a text."""
    pattern, content = config["pattern"], config["content"]
    if "String" in pattern:
        old: str = pattern["String"]
        return lambda text: text.replace(old, content)
    expression = compile_pattern(pattern["Regex"])
    return lambda text: expression.sub(lambda _match: content, text)


def _stripped(text: str, left: bool, right: bool) -> str:
    text = text.lstrip(WHITE_SPACE) if left else text
    return text.rstrip(WHITE_SPACE) if right else text
