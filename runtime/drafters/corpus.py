"""A text file of the user's that the n-gram drafter looks continuations up in: notes, code, answers given before.

It is tokenised once. Every position's next few tokens are packed into one number, and these are sorted, so all places where a few
tokens occur are one range, found by two binary searches. That takes 16 bytes a token in a file of the user's cache, which is mapped:
memory that the system can take back.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgespec.cache import cache_folder, forget_oldest, write
from edgespec.errors import UsageError
from edgespec.runtime.drafters.matches import OCCURRENCES, Match, agreement
from edgespec.runtime.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

FORMAT = 1
MOST_BYTES = 32 * 2**20
PIECE = 2**16  # characters that are tokenised at once
KEY_BITS = 64
MOST_KEY = 4  # tokens in a key
KEPT = 4  # corpora in the user's cache, which each edit of a file makes a new one of
RECORD = 16  # bytes for each token: itself, a position, a key


class Corpus:
    """Tokens [N], and for each of the N - size + 1 runs of ``size`` tokens its key, ascending, with its position."""

    def __init__(self, tokens: npt.NDArray[np.int32], positions: npt.NDArray[np.int32], keys: npt.NDArray[np.uint64], bits: int) -> None:
        self.tokens = tokens
        self._positions, self._keys = positions, keys
        self._bits = bits
        self.size = key_size(bits)

    @classmethod
    def of(cls, tokens: npt.NDArray[np.int32], bits: int) -> Corpus:
        """Index ``tokens``, whose ids have ``bits`` bits."""
        size = key_size(bits)
        keys = np.zeros(max(len(tokens) - size + 1, 0), np.uint64)
        for offset in range(size):
            keys <<= np.uint64(bits)
            keys |= tokens[offset : offset + len(keys)].astype(np.uint64)
        positions = np.argsort(keys, kind="stable").astype(np.int32)
        return cls(tokens, positions, keys[positions], bits)

    def matches(self, text: Sequence[int], shortest: int) -> list[Match]:
        """A few occurrences of the longest end of ``text`` that occurs, if it has ``shortest`` tokens. All are equally near, so they
        are spread over the whole corpus."""
        for size in range(min(self.size, len(text)), 0, -1):
            low, high = self._range(text[-size:])
            if low < high:
                return self._followed(text, size, low, high, shortest)
        return []

    def _followed(self, text: Sequence[int], size: int, low: int, high: int, shortest: int) -> list[Match]:
        found = []
        for place in np.linspace(low, high - 1, min(high - low, OCCURRENCES)).astype(np.int64).tolist():
            position = int(self._positions[place]) + size
            length = agreement(self.tokens, position, text, size)  # type: ignore[arg-type]
            if length >= shortest and position < len(self.tokens):
                found.append(Match(self.tokens, position, length))  # type: ignore[arg-type]
        return found

    def _range(self, ngram: Sequence[int]) -> tuple[int, int]:
        """The keys that begin with these tokens."""
        prefix = 0
        for token in ngram:
            if token >> self._bits:
                return 0, 0
            prefix = prefix << self._bits | token
        free = self._bits * (self.size - len(ngram))
        first, last = prefix << free, (prefix + 1 << free) - 1
        # As numpy's own type: a Python number would turn all keys into floats.
        low = int(np.searchsorted(self._keys, np.uint64(first), side="left"))
        return low, int(np.searchsorted(self._keys, np.uint64(last), side="right"))


def key_size(bits: int) -> int:
    """How many tokens of so many bits a key holds."""
    return min(MOST_KEY, KEY_BITS // bits)


def read_corpus(path: str | Path, tokenizer: Tokenizer) -> Corpus:
    """The corpus of a text file, from the cache if it was read before with the same tokenizer.

    Raises:
        UsageError: no such file, not UTF-8, or too large.
    """
    path = Path(path)
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"n-gram corpus {path}: has {path.stat().st_size} bytes; at most {MOST_BYTES} are read, give a part of it")
        data = path.read_bytes()
        text = data.decode("utf-8")
    except OSError as error:
        raise UsageError(f"n-gram corpus {path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"n-gram corpus {path}: is not a text in UTF-8: byte {error.start} is wrong") from error
    bits = max((tokenizer.size - 1).bit_length(), 1)
    digest = hashlib.sha256(f"{FORMAT} {tokenizer.spec.fingerprint} {bits} ".encode() + data).hexdigest()[:24]
    name = f"corpus-{digest}.bin"
    found = _load(name, bits)
    if found is None:
        log.info("%s: indexing for the n-gram drafter", path)
        found = Corpus.of(_tokens(text, tokenizer), bits)
        if _store(name, found):
            found = _load(name, bits) or found
            forget_oldest("corpus-*.bin", KEPT)
    return found


def _tokens(text: str, tokenizer: Tokenizer) -> npt.NDArray[np.int32]:
    """Tokenised piece by piece, cut at ends of lines where there are any."""
    pieces, start = [np.zeros(0, np.int32)], 0
    while start < len(text):
        end = start + PIECE
        line = text.rfind("\n", start, end) + 1
        end = line if end < len(text) and line > start else end
        pieces.append(np.asarray(tokenizer.encode(text[start:end], prefix=False), np.int32))
        start = end
    return np.concatenate(pieces)


def _load(name: str, bits: int) -> Corpus | None:
    """Mapped from the cache; None if it is not there, or not whole."""
    path = cache_folder() / name
    try:
        data = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError, RuntimeError):
        return None
    count, rest = divmod(len(data), RECORD)
    runs = count - key_size(bits) + 1
    if rest or runs < 1:
        return None
    # Keys first, which have to lie at multiples of 8 bytes; those of the last few positions are missing, and padding in the file.
    keys, ids, positions = data[: 8 * count].view(np.uint64), data[8 * count : 12 * count], data[12 * count :]
    return Corpus(ids.view(np.int32), positions.view(np.int32)[:runs], keys[:runs], bits)


def _store(name: str, corpus: Corpus) -> bool:
    """Write it whole or not at all; whether that worked."""
    count = len(corpus.tokens)
    parts = (_padded(corpus._keys, count), corpus.tokens, _padded(corpus._positions, count))
    return write(name, [np.ascontiguousarray(part).data for part in parts])


def _padded(array: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    return np.concatenate([array, np.zeros(count - len(array), array.dtype)])
