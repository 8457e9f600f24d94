"""Byte-pair encoding of one word: the model of a tokenizer.json."""

from __future__ import annotations

import heapq
import itertools
from array import array
from collections.abc import Sequence
from typing import Any

from edgespec.runtime.text.bpe.errors import UnsupportedTokenizer

SHIFT = 24  # a pair of ids is one number, so that a table of 150,000 merges takes a third of the memory
MOST_IDS = 1 << SHIFT
LONGEST_PLAIN = 32  # parts; longer words take the way with a heap


def is_id(value: object) -> bool:
    """Whether a file's value can be the id of a token."""
    return isinstance(value, int) and 0 <= value < MOST_IDS


class Bpe:
    """Vocabulary and merges."""

    def __init__(self, config: dict[str, Any]) -> None:
        for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
            if config.get(name):
                raise UnsupportedTokenizer(f"BPE with {name}")
        self.vocab: dict[str, int] = config["vocab"]
        if not all(map(is_id, self.vocab.values())):
            raise ValueError(f"an id that is not a number below {MOST_IDS}")
        self._ignore_merges = bool(config.get("ignore_merges"))
        self._fuse_unknown = bool(config.get("fuse_unk"))
        unknown = config.get("unk_token")
        self._unknown = None if unknown is None else self.vocab[unknown]
        self._bytes = [self.vocab.get(f"<0x{byte:02X}>") for byte in range(256)] if config.get("byte_fallback") else None
        self._ranks, self._merged = self._read_merges(config["merges"])

    def encode(self, word: str) -> list[int]:
        """Ids of a word, in the letters of the vocabulary."""
        whole = self.vocab.get(word) if self._ignore_merges else None
        if whole is not None:
            return [whole]
        ids = self._characters(word)
        return self._merge_few(ids) if len(ids) <= LONGEST_PLAIN else self._merge_many(ids)

    def _read_merges(self, merges: Sequence[Any]) -> tuple[dict[int, int], array[int]]:
        """Rank of each pair, and by rank the id that it becomes."""
        vocab, ranks, merged = self.vocab, {}, array("i")
        for rank, pair in enumerate(merges):
            left, right = pair.split(" ") if isinstance(pair, str) else pair
            ranks[vocab[left] << SHIFT | vocab[right]] = rank
            merged.append(vocab[left + right])
        return ranks, merged

    def _characters(self, word: str) -> list[int]:
        """Ids of the characters; those that have none as bytes, or as the unknown token."""
        ids: list[int] = []
        unknown = False  # one is waiting
        for char in word:
            token = self.vocab.get(char)
            if token is not None:
                if unknown:
                    ids.append(self._unknown)  # type: ignore[arg-type]
                    unknown = False
                ids.append(token)
                continue
            if self._bytes is not None:
                parts = [self._bytes[byte] for byte in char.encode("utf-8")]
                if None not in parts:
                    ids.extend(part for part in parts if part is not None)
                    continue
            if self._unknown is not None:
                if unknown and not self._fuse_unknown:
                    ids.append(self._unknown)
                unknown = True
        if unknown:
            ids.append(self._unknown)  # type: ignore[arg-type]
        return ids

    def _merge_few(self, ids: list[int]) -> list[int]:
        """Merge the pair of the lowest rank, the leftmost of several, until none is left."""
        ranks, none = self._ranks, len(self._merged)
        pairs = [ranks.get(left << SHIFT | right, none) for left, right in itertools.pairwise(ids)]
        while pairs:
            rank = min(pairs)
            if rank == none:
                break
            place = pairs.index(rank)
            ids[place : place + 2] = [self._merged[rank]]
            del pairs[place]
            if place:
                pairs[place - 1] = ranks.get(ids[place - 1] << SHIFT | ids[place], none)
            if place < len(pairs):
                pairs[place] = ranks.get(ids[place] << SHIFT | ids[place + 1], none)
        return ids

    def _merge_many(self, ids: list[int]) -> list[int]:
        """The same in n log n: a heap of pairs over a linked list."""
        ranks, count = self._ranks, len(ids)
        after, before = list(range(1, count + 1)), list(range(-1, count - 1))
        heap: list[tuple[int, int, int, int]] = []

        def push(left: int) -> None:
            right = after[left]
            if right < count:
                rank = ranks.get(ids[left] << SHIFT | ids[right])
                if rank is not None:
                    heapq.heappush(heap, (rank, left, ids[left], ids[right]))

        for place in range(count - 1):
            push(place)
        while heap:
            rank, left, first, second = heapq.heappop(heap)
            right = after[left]
            if ids[left] != first or right >= count or ids[right] != second:
                continue  # one of them was merged since
            ids[left], ids[right] = self._merged[rank], -1
            after[left] = after[right]
            if after[right] < count:
                before[after[right]] = left
            push(left)
            if before[left] >= 0:
                push(before[left])
        return [token for token in ids if token >= 0]
