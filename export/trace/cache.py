"""Stands in for transformers' ``Cache`` while a model is traced."""

from __future__ import annotations

from typing import Any

import torch


class GraphCache:
    """Hands new keys and values through: the past lives in graph inputs, which the attention stand-in reads itself."""

    is_compileable = False
    is_initialized = True
    layers: tuple[Any, ...] = ()

    def __init__(self, num_layers: int) -> None:
        self.is_sliding = [False] * num_layers

    def update(self, keys: torch.Tensor, values: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return keys, values

    def get_seq_length(self, *_: Any) -> int:
        return 0

    def get_mask_sizes(self, *_: Any, **__: Any) -> tuple[int, int]:
        return 1, 0

    def get_max_cache_shape(self, *_: Any) -> None:
        return None

    def __len__(self) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        # States of convolutions and recurrences, for example.
        raise AttributeError(f"it asks its cache for {name}, which rows of keys and values are not")
