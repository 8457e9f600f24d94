"""Checkpoints: a Hub id, a folder or a ``.gguf`` file, opened as tensors by name."""

from edgespec.export.checkpoint.base import Checkpoint, Origin
from edgespec.export.checkpoint.resolve import open_checkpoint

__all__ = ["Checkpoint", "Origin", "open_checkpoint"]
