"""Layers that attend to a window must say so: a window that a model applies through its mask alone is not in the traced graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgespec.errors import UnsupportedModelError
from edgespec.manifest import KvLayer


def check_windows(config: Any, layers: Sequence[KvLayer], capacity: int) -> None:
    """Compare the windows that the configuration speaks of with those that the traced layers have.

    A window that the cache never outgrows hides nothing, so such a model can be exported with less context.

    Raises:
        UnsupportedModelError: a layer should have a window, or attend in chunks, and the graph would let it see everything.
    """
    kinds = getattr(config, "layer_types", None) or [None] * len(layers)
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    chunk = getattr(config, "attention_chunk_size", None)
    windowed = any(layer.window for layer in layers)
    for index, (kind, layer) in enumerate(zip(kinds, layers, strict=False)):
        if kind == "chunked_attention":
            limit, what = chunk, "attends in chunks"
        elif kind == "sliding_attention" or (kind is None and not windowed):
            limit, what = window, "attends to a window"
        else:
            continue
        if limit and not layer.window and capacity > limit:
            raise UnsupportedModelError(
                f"{config.model_type}: layer {index} {what} of {limit} positions in a way that cannot be exported; "
                f"with --context {limit} or less it makes no difference"
            )
