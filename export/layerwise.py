"""The original model in torch, run one decoder layer at a time so that each can be looked at, or changed, on the way.

Calibration and sensitivity need a layer's inputs and to run it again with other weights. The layers of the model are
wrapped: a visitor gets each layer with a way to run it, and what it returns goes on to the next. Memory: one layer's
weights as float32, and the hidden states of the text.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch
from accelerate.hooks import attach_align_device_hook
from torch import nn

from edgespec.export.checkpoint import Checkpoint
from edgespec.export.trace.model import build_empty, decoder_layers, tied_names

Run = Callable[[torch.Tensor], torch.Tensor]


class LayerWeights(Mapping[str, torch.Tensor]):
    """A checkpoint as float32 under every name of the model. Tensors are kept until :meth:`forget`; ``changed`` ones replace them."""

    def __init__(self, checkpoint: Checkpoint, tied: dict[str, str]) -> None:
        self._checkpoint = checkpoint
        self._tied = tied
        self._kept: dict[str, torch.Tensor] = {}
        self.changed: dict[str, torch.Tensor] = {}

    def first_name(self, name: str) -> str:
        """The name under which the checkpoint's tensor is known, the first of those that are tied."""
        return self._tied.get(name, name)

    def forget(self) -> None:
        self._kept.clear()
        self.changed.clear()

    def __getitem__(self, name: str) -> torch.Tensor:
        name = self.first_name(name)
        if name in self.changed:
            return self.changed[name]
        if name not in self._kept:
            self._kept[name] = self._checkpoint.read_float(name)
        return self._kept[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tied)

    def __len__(self) -> int:
        return len(self._tied)


class Visitor(Protocol):
    """What is done with each layer and with the head."""

    def layer(self, index: int, linears: dict[str, nn.Linear], hidden: torch.Tensor, run: Run) -> torch.Tensor:
        """``hidden`` ``[B, n, H]`` goes into layer ``index``, whose linear modules are given by their weights' (first) names.

        Returns what goes into the next layer; ``run(hidden)`` is what the original would give. The batch may grow or shrink.
        """
        ...

    def head(self, name: str, hidden: torch.Tensor, run: Run) -> None:
        """``hidden`` ``[B, n, H]`` goes into the head, whose weight is ``name``; ``run(hidden)`` gives its logits."""
        ...


def visit_layers(checkpoint: Checkpoint, config: Any, ids: torch.Tensor, make: Callable[[LayerWeights], Visitor]) -> None:
    """Run ``ids`` int64 ``[B, n]`` through the original model under the eyes of a visitor, which is given the weights it may change."""
    model = build_empty(config, attention="eager")
    weights = LayerWeights(checkpoint, tied_names(model))
    visitor = make(weights)
    attach_align_device_hook(model, execution_device=torch.device("cpu"), offload=True, weights_map=weights)
    prefixes = {id(module): name for name, module in model.named_modules()}
    for index, layer in enumerate(decoder_layers(model)):
        layer.forward = functools.partial(_layer_forward, visitor, weights, index, layer, layer.forward, prefixes[id(layer)])
    head = model.get_output_embeddings()
    head.forward = functools.partial(_head_forward, visitor, weights, weights.first_name(f"{prefixes[id(head)]}.weight"), head.forward)
    with torch.no_grad():
        model(input_ids=ids, use_cache=False)


def _layer_forward(
    visitor: Visitor,
    weights: LayerWeights,
    index: int,
    layer: nn.Module,
    forward: Callable[..., Any],
    prefix: str,
    *args: Any,
    **kwargs: Any,
) -> Any:
    hidden = args[0] if args else kwargs.pop("hidden_states")
    outputs: list[Any] = []

    def run(states: torch.Tensor) -> torch.Tensor:
        outputs[:] = [forward(states, *args[1:], **kwargs)]
        result: torch.Tensor = outputs[0][0] if isinstance(outputs[0], tuple) else outputs[0]
        return result

    weights.forget()
    linears = {
        weights.first_name(f"{prefix}.{name}.weight"): module for name, module in layer.named_modules() if isinstance(module, nn.Linear)
    }
    new = visitor.layer(index, linears, hidden, run)
    weights.forget()
    return (new, *outputs[0][1:]) if isinstance(outputs[0], tuple) else new


def _head_forward(visitor: Visitor, weights: LayerWeights, name: str, forward: Callable[..., Any], hidden: torch.Tensor) -> torch.Tensor:
    visitor.head(name, hidden, forward)
    weights.forget()
    result: torch.Tensor = forward(hidden[:1, -1:])  # only so that the model's own tail has something to work on
    return result


@contextlib.contextmanager
def linear_inputs(linears: dict[str, nn.Linear], see: Callable[[str, torch.Tensor], None]) -> Iterator[None]:
    """Show the inputs of linear modules, by their weights' names, while layers run."""

    def hook(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        return lambda _module, args: see(name, args[0])

    handles = [module.register_forward_pre_hook(hook(name)) for name, module in linears.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
