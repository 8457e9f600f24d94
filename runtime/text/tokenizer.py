"""The bundle's tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.errors import BundleError, UsageError
from edgespec.manifest import TokenizerSpec

if TYPE_CHECKING:
    import tokenizers


class Tokenizer:
    """Encodes prompts and decodes ids. ``size`` is the number of ids that a model with ``vocab_size`` logits can use."""

    def __init__(self, bundle: Path, spec: TokenizerSpec, vocab_size: int) -> None:
        self.spec = spec
        self.size = min(vocab_size, spec.vocab_size)
        self._tokenizer = _load(bundle / spec.file)

    def encode(self, text: str, *, prefix: bool) -> list[int]:
        """Ids of ``text``, after the ids that the tokenizer puts before a plain prompt if ``prefix``.

        Special tokens that the text spells out are recognised: chat templates spell them out.
        """
        try:
            ids = list(self._tokenizer.encode(text, add_special_tokens=False).ids)
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
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))


def _load(path: Path) -> tokenizers.Tokenizer:
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare exceptions
        raise BundleError(f"{path}: not a tokenizer that this version of tokenizers reads: {error}") from error
