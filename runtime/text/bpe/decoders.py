"""Decoders: from the texts of tokens to the text."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from edgespec.runtime.text.bpe.errors import UnsupportedTokenizer
from edgespec.runtime.text.bpe.normalizers import make_replace

Decode = Callable[[list[str]], list[str]]
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def make_decoder(config: dict[str, Any] | None) -> Decode:
    """The function that a ``decoder`` of tokenizer.json describes, on the texts of tokens."""
    if config is None:
        return lambda tokens: [" ".join(tokens)]
    kind = config["type"]
    if kind == "Sequence":
        steps = [make_decoder(step) for step in config["decoders"]]
        return lambda tokens: functools.reduce(lambda value, step: step(value), steps, tokens)
    if kind == "ByteLevel":
        return _from_letters
    if kind == "ByteFallback":
        return _from_byte_tokens
    if kind == "Fuse":
        return lambda tokens: ["".join(tokens)]
    if kind == "Replace":
        replace = make_replace(config)
        return lambda tokens: [replace(token) for token in tokens]
    if kind == "Strip":
        content, start, stop = config["content"], config["start"], config["stop"]
        return lambda tokens: [_without(token, content, start, stop) for token in tokens]
    if kind == "Metaspace":
        return _metaspace(config)
    raise UnsupportedTokenizer(f"decoder {kind}")


@functools.cache
def byte_letters() -> dict[int, str]:
    """GPT-2's printable letter for each byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in plain)
    return {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + index) for index, byte in enumerate(others)}}


@functools.cache
def letter_bytes() -> dict[str, int]:
    """The byte of each of these letters."""
    return {letter: byte for byte, letter in byte_letters().items()}


def _from_letters(tokens: list[str]) -> list[str]:
    """Tokens in GPT-2's letters as one text. A token with any other character is text already."""
    letters, data = letter_bytes(), bytearray()
    for token in tokens:
        try:
            data += bytes(map(letters.__getitem__, token))
        except KeyError:
            data += token.encode("utf-8")
    return [data.decode("utf-8", "replace")]


def _from_byte_tokens(tokens: list[str]) -> list[str]:
    """Runs of ``<0xE2>`` as the characters that they are, or a mark for each where they are none."""
    found: list[str] = []
    waiting = bytearray()

    def flush() -> None:
        if waiting:
            try:
                found.append(waiting.decode("utf-8"))
            except UnicodeDecodeError:
                found.extend("\ufffd" * len(waiting))
            waiting.clear()

    for token in tokens:
        byte = BYTE_TOKEN.fullmatch(token)
        if byte:
            waiting.append(int(byte[1], 16))
        else:
            flush()
            found.append(token)
    flush()
    return found


def _without(token: str, content: str, start: int, stop: int) -> str:
    """At most so many of the character ``content`` fewer at both ends."""
    first = next((index for index in range(min(start, len(token))) if token[index] != content), min(start, len(token)))
    rest = token[first:]
    last = next((count for count in range(min(stop, len(rest))) if rest[-1 - count] != content), min(stop, len(rest)))
    return rest[: len(rest) - last]


def _metaspace(config: dict[str, Any]) -> Decode:
    mark = config.get("replacement", "▁")
    never = config.get("prepend_scheme", "always" if config.get("add_prefix_space", True) else "never") == "never"

    def decode(tokens: list[str]) -> list[str]:
        return [token.replace(mark, " " if index or never else "") for index, token in enumerate(tokens)]

    return decode
