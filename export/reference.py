"""The original model in torch, with the weights of one module at a time in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from accelerate.hooks import attach_align_device_hook

from edgespec.export.checkpoint import Checkpoint
from edgespec.export.trace.model import build_empty, tied_names


class _FloatWeights(Mapping[str, torch.Tensor]):
    """A checkpoint as float32, under every name that the model has for a tensor."""

    def __init__(self, checkpoint: Checkpoint, tied: dict[str, str]) -> None:
        self._checkpoint = checkpoint
        self._tied = tied

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._checkpoint.read_float(self._tied.get(name, name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._tied)

    def __len__(self) -> int:
        return len(self._tied)


def reference_logits(checkpoint: Checkpoint, config: Any, ids: torch.Tensor) -> torch.Tensor:
    """Logits of the original model: ids int64 ``[B, n]`` -> float32 ``[B, n, V]``.

    Every module reads its weights when it is called and drops them after, so this needs one pass over the checkpoint
    and the memory of its largest module.
    """
    model = build_empty(config, attention="eager")
    weights = _FloatWeights(checkpoint, tied_names(model))
    attach_align_device_hook(model, execution_device=torch.device("cpu"), offload=True, weights_map=weights)
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits
    return logits.float()


def shallow_config(config: Any, layers: int) -> Any:
    """The configuration of the model's own first ``layers`` layers."""
    text = config.get_text_config()
    text.num_hidden_layers = layers
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:layers]
    return config
