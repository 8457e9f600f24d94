"""The bundle's tokenizer: the package ``tokenizers`` where there is one, else :mod:`edgespec.runtime.text.bpe`, with equal ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from edgespec.errors import BundleError, UsageError
from edgespec.manifest import TokenizerSpec


class Codec(Protocol):
    """What reads a tokenizer.json."""

    def encode(self, text: str) -> list[int]:
        """Ids of ``text`` without any that a tokenizer puts around it."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids`` without special tokens."""
        ...

    def spell(self, ids: Sequence[int]) -> str:
        """Text of ``ids`` in which special tokens are spelt out, so that it encodes to them again."""
        ...


class Tokenizer:
    """Encodes prompts and decodes ids. ``size`` is the number of ids that a model with ``vocab_size`` logits can use."""

    def __init__(self, bundle: Path, spec: TokenizerSpec, vocab_size: int) -> None:
        self.spec = spec
        self.size = min(vocab_size, spec.vocab_size)
        self.codec = load_codec(bundle / spec.file)

    def encode(self, text: str, *, prefix: bool) -> list[int]:
        """Ids of ``text``, after the ids that the tokenizer puts before a plain prompt if ``prefix``.

        Special tokens that the text spells out are recognised: chat templates spell them out.
        """
        try:
            ids = self.codec.encode(text)
        except Exception as error:  # tokenizers raises bare exceptions, for lone surrogates for example
            raise UsageError(f"the prompt cannot be encoded: {error}") from error
        ids = [*self.spec.prefix_ids, *ids] if prefix else ids
        if ids and max(ids) >= self.size:
            raise BundleError(f"{self.spec.file}: gives id {max(ids)}, and the model has {self.size}; export the bundle again")
        return ids

    def check(self, ids: Sequence[int]) -> list[int]:
        """``ids`` as a list.

        Raises:
            UsageError: something in it is not an id of this vocabulary.
        """
        for token in ids:
            if isinstance(token, bool) or not hasattr(token, "__index__") or not 0 <= int(token) < self.size:
                raise UsageError(f"token id {token!r}: expected whole numbers from 0 to {self.size - 1}")
        return [int(token) for token in ids]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids`` without special tokens. A character that is not complete yet comes out as U+FFFD."""
        return self.codec.decode(ids)


def load_codec(path: Path) -> Codec:
    """Open a tokenizer.json.

    Raises:
        BundleError: it cannot be read, or nothing here can do what it asks for.
    """
    try:
        import tokenizers
    except ImportError:  # no build of it for this system
        return _load_bpe(path)
    try:
        return _Package(tokenizers.Tokenizer.from_file(str(path)))
    except Exception as error:  # tokenizers raises bare exceptions
        raise BundleError(f"{path}: not a tokenizer that this version of tokenizers reads: {error}") from error


def _load_bpe(path: Path) -> Codec:
    from edgespec.runtime.text.bpe import BpeTokenizer, UnsupportedTokenizer

    try:
        return BpeTokenizer.open(path)
    except UnsupportedTokenizer as error:
        raise BundleError(
            f"{path}: {error}: only the package tokenizers can do this, and it is not installed; pip install tokenizers"
        ) from error
    except (OSError, ValueError) as error:
        raise BundleError(f"{path}: not a tokenizer.json that can be read: {error}") from error


class _Package:
    """A tokenizer of the package ``tokenizers``."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def spell(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))
