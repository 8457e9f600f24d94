"""torch.export and torch.onnx.export: a model without weights becomes a graph in the dialect of :mod:`.dialect`."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import warnings
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import onnx_ir as ir
import torch
from torch import nn

from edgespec.errors import UnsupportedModelError
from edgespec.export.recipe import Recipe, set_recipe
from edgespec.export.standins import stand_ins
from edgespec.export.standins.attention import start_tape
from edgespec.export.standins.layer_output import mark_layer_outputs
from edgespec.export.trace.cache import GraphCache
from edgespec.export.trace.model import decoder_layers, discover_layers, fake_parameters, tied_names
from edgespec.manifest import KvLayer

OPSET = 23
EXAMPLE_TOKENS, EXAMPLE_ROWS, EXAMPLE_CAPACITY = 4, 3, 64
KV_DTYPE = torch.float32


@dataclasses.dataclass
class Traced:
    """A traced decoder. ``graph.initializers`` are named like the parameters of the transformers model, tied ones by
    their first name; they have shapes and no values, except for buffers."""

    model: ir.Model
    layers: tuple[KvLayer, ...]
    vocab_size: int
    hidden_size: int


class _GraphContract(nn.Module):
    """The model with the inputs and outputs of the graph contract (docs/architecture.md); a draft head is given features, and
    gives its own."""

    def __init__(self, model: Any, num_layers: int) -> None:
        super().__init__()
        self.model = model
        self.num_layers = num_layers
        self._logit_rows: torch.Tensor | None = None
        # Rows are chosen in front of the head: it is the largest matrix, and most rows need no logits.
        model.get_output_embeddings().register_forward_pre_hook(self._keep_rows)

    def _keep_rows(self, _head: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        assert self._logit_rows is not None
        return (torch.index_select(args[0], 1, self._logit_rows), *args[1:])

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        logit_rows: torch.Tensor,
        past: list[tuple[torch.Tensor, torch.Tensor]],
        features: list[torch.Tensor],
    ) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]], list[torch.Tensor]]:
        tape = start_tape(past)
        self._logit_rows = logit_rows
        found = self.model(
            input_ids=input_ids,
            position_ids=position_ids,
            past_key_values=GraphCache(self.num_layers),
            use_cache=True,
            **({"features": features} if features else {}),
        )
        return found.logits, [tape.present[layer] for layer in range(self.num_layers)], [found.last_hidden_state] if features else []


def trace(model: Any, features: Mapping[str, int] = MappingProxyType({})) -> Traced:
    """Trace a model made by :func:`edgespec.export.trace.model.build_empty`, or a draft head.

    Args:
        model: the model.
        features: the further inputs of a draft head, ``[1, S, width]``: names and widths. Of several each may have fewer rows.

    Raises:
        UnsupportedModelError: the model cannot be traced; the message carries torch's reason.
    """
    names = tied_names(model)
    try:
        with stand_ins(model), fake_parameters(model) as mode, _quiet():
            with mode:
                layers = discover_layers(model, features)
                arguments = _example(layers, features)
            mark_layer_outputs(decoder_layers(model))
            shapes = _dynamic_shapes(len(layers), len(features))
            program = torch.export.export(_GraphContract(model, len(layers)), (), kwargs=arguments, dynamic_shapes=shapes, strict=False)
            onnx_program = torch.onnx.export(program, (), kwargs=arguments, dynamo=True, optimize=False, opset_version=OPSET, verbose=False)
    except UnsupportedModelError:
        raise
    except Exception as error:  # torch.export raises many kinds; all mean the same to the user
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UnsupportedModelError(f"{model.config.model_type}: the model cannot be traced: {reason[:200]}") from error
    assert onnx_program is not None
    graph_model = onnx_program.model
    _rename(graph_model, names, list(features))
    config = model.config.get_text_config()
    return Traced(graph_model, layers, int(model.get_output_embeddings().weight.shape[0]), int(config.hidden_size))


def _example(layers: tuple[KvLayer, ...], features: Mapping[str, int]) -> dict[str, Any]:
    ids = torch.zeros(1, EXAMPLE_TOKENS, dtype=torch.long)
    # Several have rows of their own numbers, so that none is taken for another.
    rows = [EXAMPLE_TOKENS] if len(features) == 1 else [EXAMPLE_TOKENS + 1 + index for index in range(len(features))]

    def buffer(heads: int, dim: int) -> torch.Tensor:
        return torch.zeros(1, heads, EXAMPLE_CAPACITY, dim, dtype=KV_DTYPE)

    return {
        "input_ids": ids,
        "position_ids": ids.clone(),
        "logit_rows": torch.zeros(EXAMPLE_ROWS, dtype=torch.long),
        "past": [(buffer(layer.heads, layer.key_dim), buffer(layer.heads, layer.value_dim)) for layer in layers],
        "features": [torch.zeros(1, count, width) for count, width in zip(rows, features.values(), strict=True)],
    }


def _dynamic_shapes(num_layers: int, num_features: int) -> dict[str, Any]:
    tokens = torch.export.Dim("S", min=1, max=2**20)
    rows = torch.export.Dim("R", min=1, max=2**20)
    capacity = torch.export.Dim("C", min=2, max=2**26)
    return {
        "input_ids": {1: tokens},
        "position_ids": {1: tokens},
        "logit_rows": {0: rows},
        "past": [({2: capacity}, {2: capacity})] * num_layers,
        "features": [{1: tokens}]
        if num_features == 1
        else [{1: torch.export.Dim(f"F{index}", min=1, max=2**20)} for index in range(num_features)],
    }


def _rename(model: ir.Model, tied: dict[str, str], features: list[str]) -> None:
    """Graph inputs and outputs by the contract, initializers by the parameters' own (first) names."""
    graph = model.graph
    inputs = ["input_ids", "position_ids", "logit_rows"]
    kv = [f"{layer}.{part}" for layer in range((len(graph.inputs) - len(inputs) - len(features)) // 2) for part in ("key", "value")]
    for value, name in zip(graph.inputs, [*inputs, *(f"past_key_values.{name}" for name in kv), *features], strict=True):
        value.name = name
    own = ["hidden_states"] if features else []
    for value, name in zip(graph.outputs, ["logits", *(f"present.{name}" for name in kv), *own], strict=True):
        value.name = name
    for value in list(graph.initializers.values()):
        name = (value.name or "").removeprefix("model.")
        first = tied.get(name)
        if first is None:
            continue  # a buffer or a constant, it keeps its value
        if first != name and first in graph.initializers:
            value.replace_all_uses_with(graph.initializers[first])
            del graph.initializers[value.name or ""]
            continue
        value.name = first
        value.const_value = None
        set_recipe(value, Recipe((first,)))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torch.export and torch.onnx warn about their own internals; nothing of that is for the user."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "torch._subclasses", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
