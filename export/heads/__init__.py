"""Draft heads beside a target (``--medusa``, ``--eagle``): their public layouts, and their graphs.

A head reads hidden states that the target gives (``taps``) and sees nothing else of it.
"""

from __future__ import annotations

from collections.abc import Callable

from edgespec.export.config import ExportConfig
from edgespec.export.heads.base import Head, TargetShape
from edgespec.export.heads.eagle import open_eagle
from edgespec.export.heads.medusa import open_medusa

__all__ = ["Head", "TargetShape", "open_heads", "taps_of"]


def open_heads(config: ExportConfig, target: TargetShape) -> tuple[Head, ...]:
    """The heads that ``config`` names, checked against the target before any work."""
    openers: dict[str, Callable[[str, TargetShape], Head]] = {"medusa": open_medusa, "eagle": open_eagle}
    sources = {name: getattr(config, name) for name in openers}
    return tuple(openers[name](source, target) for name, source in sources.items() if source is not None)


def taps_of(heads: tuple[Head, ...]) -> tuple[str, ...]:
    """All hidden states that ``heads`` read, each once; those of one head stay side by side where they can."""
    return tuple(dict.fromkeys(tap for head in heads for tap in head.taps))
