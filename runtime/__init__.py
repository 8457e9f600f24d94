"""edgespec.runtime: from a bundle to text, with numpy, ONNX Runtime, tokenizers and jinja2 and nothing else.

``load`` opens a bundle; :mod:`edgespec.runtime.loop` is where to start reading.
"""

from __future__ import annotations

from edgespec.runtime.conversations.chat import Chat
from edgespec.runtime.engine import Engine, load
from edgespec.runtime.options import GenerationOptions
from edgespec.runtime.stats import Stats
from edgespec.runtime.stream import GenerationResult, Piece, Stream
from edgespec.runtime.verify import VerifyReport, verify

__all__ = ["Chat", "Engine", "GenerationOptions", "GenerationResult", "Piece", "Stats", "Stream", "VerifyReport", "load", "verify"]
