"""What is raised for a part of a tokenizer.json that is not known here."""

from __future__ import annotations


class UnsupportedTokenizer(Exception):
    """A part that only the package ``tokenizers`` can do. The message names it."""
