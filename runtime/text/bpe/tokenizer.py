"""The whole: a tokenizer.json that encodes and decodes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgespec.runtime.text.bpe.added_tokens import AddedTokens
from edgespec.runtime.text.bpe.decoders import byte_letters, make_decoder
from edgespec.runtime.text.bpe.errors import UnsupportedTokenizer
from edgespec.runtime.text.bpe.merges import MOST_IDS, Bpe, is_id
from edgespec.runtime.text.bpe.normalizers import make_normalizer
from edgespec.runtime.text.bpe.pre_tokenizers import make_pre_tokenizer, writes_bytes

MOST_BYTES = 256 * 2**20
LONGEST_CACHED, MOST_CACHED = 64, 1 << 15  # characters of a word, and words whose ids are kept


class BpeTokenizer:
    """Encodes like ``tokenizers.Tokenizer.encode(..., add_special_tokens=False)`` and decodes like its ``decode``."""

    def __init__(self, config: dict[str, Any]) -> None:
        kind = config["model"].get("type", "BPE")
        if kind != "BPE":
            raise UnsupportedTokenizer(f"model {kind}; only BPE is known here")
        for name in ("truncation", "padding"):
            if config.get(name):
                raise UnsupportedTokenizer(name)
        added = config.get("added_tokens") or []
        if not all(is_id(entry["id"]) and isinstance(entry["content"], str) for entry in added):
            raise ValueError(f"an added token without a text, or with an id that is not a number below {MOST_IDS}")
        self._raw_tokens = AddedTokens(entry for entry in added if not entry.get("normalized"))
        self._normalize = make_normalizer(config.get("normalizer"))
        self._normal_tokens = AddedTokens(self._normalized(entry) for entry in added if entry.get("normalized"))
        self._cut = make_pre_tokenizer(config.get("pre_tokenizer"))
        self._letters = byte_letters() if writes_bytes(config.get("pre_tokenizer")) else None
        self._bpe = Bpe(config["model"])
        self._words: dict[str, list[int]] = {}
        self._decode = make_decoder(config.get("decoder"))
        self._texts = _by_id(self._bpe.vocab, [self._normalized(entry) if entry.get("normalized") else entry for entry in added])
        special = {entry["content"] for entry in added if entry.get("special")}
        self._special = frozenset(token for token, text in enumerate(self._texts) if text in special)

    @classmethod
    def open(cls, path: Path) -> BpeTokenizer:
        """Read a tokenizer.json.

        Raises:
            UnsupportedTokenizer: it uses something that is not known here; the message names it.
            ValueError: not such a file.
            OSError: it cannot be read.
        """
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"larger than {MOST_BYTES} bytes")
        try:
            return cls(json.loads(path.read_bytes()))
        except (KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``; tokens that it spells out are recognised, also special ones.

        Raises:
            UnicodeEncodeError: the text has half a surrogate pair.
        """
        text.encode("utf-8")
        ids: list[int] = []
        begins = True
        for piece, token in self._raw_tokens.split(text):
            if token is not None:
                ids.append(token)
            else:
                self._encode_piece(piece, begins, ids)
            begins = False
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids`` without special tokens; ids that there are not have no text."""
        special = self._special
        return self.spell([token for token in ids if token not in special])

    def spell(self, ids: Sequence[int]) -> str:
        """Text of ``ids`` in which special tokens are spelt out."""
        texts = self._texts
        known = [texts[token] for token in ids if 0 <= token < len(texts)]
        return "".join(self._decode([text for text in known if text is not None]))

    def _encode_piece(self, piece: str, begins: bool, ids: list[int]) -> None:
        """Ids of what lies between two added tokens."""
        normal = self._normalize(piece) if self._normalize else piece
        for part, token in self._normal_tokens.split(normal):
            if token is not None:
                ids.append(token)
            else:
                for word in self._cut([part], begins) if self._cut else (part,):
                    found = self._words.get(word)
                    ids.extend(self._encode_word(word) if found is None else found)
            begins = False

    def _encode_word(self, word: str) -> list[int]:
        letters = self._letters
        ids = self._bpe.encode("".join([letters[byte] for byte in word.encode("utf-8")]) if letters else word)
        if len(word) <= LONGEST_CACHED:
            if len(self._words) >= MOST_CACHED:
                self._words.clear()
            self._words[word] = ids
        return ids

    def _normalized(self, entry: dict[str, Any]) -> dict[str, Any]:
        """An added token that is looked for in normalized text, and so has to be normalized itself."""
        return {**entry, "content": self._normalize(entry["content"]) if self._normalize else entry["content"]}


def _by_id(vocab: dict[str, int], added: Sequence[dict[str, Any]]) -> list[str | None]:
    """The text of each id, that of an added token before that of the vocabulary."""
    texts: list[str | None] = [None] * (1 + max([*vocab.values(), *(entry["id"] for entry in added)], default=-1))
    for text, token in vocab.items():
        texts[token] = text
    for entry in added:
        texts[entry["id"]] = entry["content"]
    return texts
