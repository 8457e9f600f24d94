"""Marks what leaves each decoder layer, so that a graph can be cut there (early exit) or tapped (hidden states)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from edgespec.export.trace.dialect import emit


def mark_layer_outputs(layers: nn.ModuleList) -> None:
    """Put a ``LayerOutput`` marker behind each decoder layer."""
    for index, layer in enumerate(layers):
        layer.register_forward_hook(_marker(index))


def _marker(index: int) -> Any:
    def hook(_module: nn.Module, _args: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (_mark(output[0]), *output[1:])
        return _mark(output)

    def _mark(hidden: torch.Tensor) -> torch.Tensor:
        return emit("LayerOutput", (hidden,), hidden.shape, layer=index)

    return hook
