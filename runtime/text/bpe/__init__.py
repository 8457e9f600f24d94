"""Byte-pair encoding of a ``tokenizer.json`` in plain Python, for devices that have no build of ``tokenizers``.

    tokenizer = BpeTokenizer.open(path)
    tokenizer.decode(tokenizer.encode("Hello"))

A text passes added_tokens, normalizers, pre_tokenizers and merges, in this order; decoders lead back. What these files do not
know is refused when the file is opened, so that no text is cut otherwise than ``tokenizers`` cuts it.
"""

from edgespec.runtime.text.bpe.errors import UnsupportedTokenizer
from edgespec.runtime.text.bpe.tokenizer import BpeTokenizer

__all__ = ["BpeTokenizer", "UnsupportedTokenizer"]
