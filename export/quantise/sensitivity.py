"""How much KL each matrix costs when it is quantised, estimated for all of them from one pass forth and back.

A small change of a parameter, d, costs to second order a KL of half the mean of (g d)², where g is the gradient of log p(y) of a text
whose every next token y is drawn from the model's own distribution p: the Fisher information (see for example Martens 2020, arXiv
1412.1193). For a row w of a matrix whose inputs are x_t and whose output has the gradients g_t, and dw the rounding error of a scheme:

    KL of a text ≈ 1/2 (sum over tokens t of g_t (dw · x_t))²

Errors of different rows and matrices are taken to be independent, so that their numbers add up. Only the rows with the largest
gradients are quantised for it, and stand for all in proportion. Memory: one layer, and the states between layers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from accelerate.hooks import attach_align_device_hook
from torch import nn
from torch.utils.checkpoint import checkpoint as recomputed

from edgespec.export.checkpoint import Checkpoint
from edgespec.export.layerwise import LayerWeights
from edgespec.export.quantise.blockwise import dequantise, quantise
from edgespec.export.recipe import Scheme
from edgespec.export.reference import given_states
from edgespec.export.trace.model import build_empty, decoder_layers, tied_names

ROWS = 128  # of a matrix, measured
HEAD_TOKENS = 64  # logits of so many tokens at a time


@dataclasses.dataclass(frozen=True)
class Sensitivity:
    """Matrices that must have one scheme, being merged later: their shapes, and the KL in nats that each scheme costs."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, int], ...]
    harm: dict[Scheme, float]


class _Watch:
    """Linear modules while gradients flow back through them. Those that are given the same tensor form one group."""

    def __init__(self, weights: LayerWeights, schemes: Sequence[Scheme], tokens: int) -> None:
        self._weights, self._schemes, self._tokens = weights, schemes, tokens
        self._inputs: dict[int, tuple[torch.Tensor, list[str]]] = {}
        self._groups: list[list[str]] = []
        self._harm: dict[str, dict[Scheme, float]] = {}
        self._shapes: dict[str, tuple[int, int]] = {}

    def linear(self, name: str, module: nn.Linear) -> None:
        """Measure this module, whose weight is ``name``, whenever it runs with gradients."""

        def after(_module: nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> None:
            if output.requires_grad:
                x = args[0]
                self._join(name, x)
                output.register_hook(  # type: ignore[no-untyped-call]
                    lambda gradient: self._measure(name, x.detach(), gradient)
                )

        module.register_forward_hook(after)

    def start_layer(self) -> None:
        """Forget the inputs of the layer before."""
        self._inputs.clear()

    def _join(self, name: str, x: torch.Tensor) -> None:
        """Into the group of those that read ``x``, which is held, so that its id stays its own."""
        if id(x) not in self._inputs:
            self._inputs[id(x)] = (x, [])
            self._groups.append(self._inputs[id(x)][1])
        self._inputs[id(x)][1].append(name)

    def _measure(self, name: str, x: torch.Tensor, gradient: torch.Tensor) -> None:
        """``x`` ``[B, n, K]`` and ``gradient`` ``[B, n, N]``, or ``[n, K]`` and ``[n, N]`` of tokens of any text: a router's choice."""
        if not x.numel():
            return
        weight = self._weights[name]
        power = gradient.flatten(0, -2).square().sum(0)
        chosen = power.topk(min(ROWS, len(weight))).indices
        share = float(power[chosen].sum() / power.sum().clamp(min=torch.finfo(torch.float32).tiny))
        some, weighed = weight[chosen], gradient[..., chosen]
        found = self._harm.setdefault(name, dict.fromkeys(self._schemes, 0.0))
        self._shapes[name] = (weight.shape[0], weight.shape[1])
        for scheme in self._schemes:
            change = x @ (dequantise(quantise(some, scheme)) - some).T
            effect = weighed * change
            effect = effect.sum(1) if effect.dim() == 3 else effect
            found[scheme] += 0.5 * float(effect.square().sum()) / max(share, 1e-6) / self._tokens

    def embedding(self, name: str, ids: torch.Tensor, output: torch.Tensor, gradient: torch.Tensor) -> None:
        """The table's error comes in where its rows are looked up, and goes through the same scaling to the ``output``."""
        used, position = torch.unique(ids.flatten(), return_inverse=True)
        rows = self._weights[name][used]
        found = self._harm.setdefault(name, dict.fromkeys(self._schemes, 0.0))
        if name not in self._shapes:  # it is not the head's too
            self._groups.append([name])
            self._shapes[name] = (self._weights[name].shape[0], rows.shape[1])
        scale = output.detach().norm() / rows[position].norm()
        for scheme in self._schemes:
            change = (dequantise(quantise(rows, scheme)) - rows)[position] * scale
            found[scheme] += 0.5 * float((gradient * change.view_as(gradient)).square().sum()) / self._tokens

    def found(self) -> list[Sensitivity]:
        """One entry for each group, the model's first layer first."""
        unique = dict.fromkeys(tuple(dict.fromkeys(group)) for group in reversed(self._groups))
        return [
            Sensitivity(
                names,
                tuple(self._shapes[name] for name in names),
                {scheme: sum(self._harm[name][scheme] for name in names) for scheme in self._schemes},
            )
            for names in unique
            if all(name in self._harm for name in names)
        ]


def sensitivities(
    checkpoint: Checkpoint, config: Any, ids: torch.Tensor, schemes: Sequence[Scheme], on_layer: Callable[[], None] = lambda: None
) -> list[Sensitivity]:
    """Measure every linear layer, the head and the embedding on the text ``ids`` int64 ``[B, n]``.

    ``on_layer`` is told of each layer that is done, the last one first.
    """
    model = build_empty(config, attention="eager").requires_grad_(False)
    weights = LayerWeights(checkpoint, tied_names(model))
    attach_align_device_hook(model, execution_device=torch.device("cpu"), offload=True, weights_map=weights)
    watch = _Watch(weights, schemes, ids.numel())
    names = {id(module): name for name, module in model.named_modules()}
    for layer in decoder_layers(model):
        for module in layer.modules():
            if isinstance(module, nn.Linear):
                watch.linear(weights.first_name(f"{names[id(module)]}.weight"), module)
        layer.forward = _twice(layer.forward, weights, watch, on_layer)
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    watch.linear(weights.first_name(f"{names[id(head)]}.weight"), head)
    looked_up: list[torch.Tensor] = []
    table.register_forward_hook(lambda _module, _args, output: looked_up.append(output.requires_grad_()))
    outputs = model.base_model(input_ids=ids, use_cache=False)
    hidden = outputs.last_hidden_state
    gradient = _head_gradient(model, outputs, ids, watch)
    weights.forget()
    hidden.backward(gradient)
    if looked_up[0].grad is not None:
        watch.embedding(weights.first_name(f"{names[id(table)]}.weight"), ids, looked_up[0], looked_up[0].grad)
    return watch.found()


def _twice(forward: Callable[..., Any], weights: LayerWeights, watch: _Watch, on_layer: Callable[[], None]) -> Callable[..., Any]:
    """A layer that keeps nothing on the way forth and runs again on the way back."""

    def run(hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        weights.forget()
        watch.start_layer()
        if torch.is_grad_enabled():
            on_layer()
        return forward(hidden, *args, **kwargs)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        hidden = args[0] if args else kwargs.pop("hidden_states")
        return recomputed(lambda states: run(states, *args[1:], **kwargs), hidden, use_reentrant=True)

    return wrapped


def _head_gradient(model: Any, outputs: Any, ids: torch.Tensor, watch: _Watch) -> torch.Tensor:
    """Of the log-probability of one drawn token for each place, with regard to the last hidden states ``[B, n, H]``."""
    states = outputs.last_hidden_state.detach()
    gradient = torch.empty_like(states)
    generator = torch.Generator().manual_seed(0)
    rows = max(1, HEAD_TOKENS // ids.shape[1])
    for start in range(0, len(ids), rows):
        watch.start_layer()
        part = slice(start, start + rows)
        hidden = states[part].requires_grad_()
        with given_states(model, outputs, hidden):
            scores = model(input_ids=ids[part], use_cache=False).logits.float().log_softmax(-1)
        drawn = torch.multinomial(scores.detach().exp().flatten(0, -2), 1, generator=generator)
        (gradient[part],) = torch.autograd.grad(scores.flatten(0, -2).gather(1, drawn).sum(), hidden)
    return gradient
