"""The original model in torch, with the weights of one module at a time in memory."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from accelerate.hooks import attach_align_device_hook
from transformers import PreTrainedModel

from edgespec.export.trace.model import build_empty, tied_names


class Weights(Protocol):
    """Where tensors are read from: a checkpoint, or what an export has stored of it."""

    def read_float(self, name: str) -> torch.Tensor:
        """The tensor as float32."""
        ...


class FloatWeights(Mapping[str, torch.Tensor]):
    """Tensors under every name that the model has for them. The one read last is kept: the head is read often."""

    def __init__(self, weights: Weights, tied: dict[str, str]) -> None:
        self._weights = weights
        self._tied = tied
        self._last: tuple[str, torch.Tensor] | None = None

    def __getitem__(self, name: str) -> torch.Tensor:
        first = self._tied.get(name, name)
        if self._last is None or self._last[0] != first:
            self._last = None
            self._last = (first, self._weights.read_float(first))
        return self._last[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tied)

    def __len__(self) -> int:
        return len(self._tied)


class Reference:
    """Logits of the original model for token sequences of any lengths.

    Every module reads its weights when it is called and drops them after, so this needs one pass over the weights
    and the memory of its largest module. Only the hidden states of all sequences are kept; logits are made of them when
    they are asked for, one sequence at a time.
    """

    def __init__(self, weights: Weights, config: Any, sequences: Sequence[list[int]]) -> None:
        self._model = build_empty(config, attention="eager")
        by_name = FloatWeights(weights, tied_names(self._model))
        attach_align_device_hook(self._model, execution_device=torch.device("cpu"), offload=True, weights_map=by_name)
        self._lengths = [len(sequence) for sequence in sequences]
        # Short ones are filled up at the end, where causal attention sees nothing of it.
        longest = max(self._lengths)
        self._ids = torch.tensor([[*sequence, *[sequence[-1]] * (longest - len(sequence))] for sequence in sequences])
        # A model that is its own base has no head apart from it and runs anew for every sequence.
        self._outputs: Any = None
        if self._model.base_model is not self._model:
            with torch.no_grad():
                self._outputs = self._model.base_model(input_ids=self._ids, use_cache=False)

    def logits(self, index: int) -> np.ndarray:
        """float32 ``[n, V]`` of one sequence."""
        ids = self._ids[index : index + 1, : self._lengths[index]]
        if self._outputs is None:
            return self._run(ids)
        with given_states(self._model, self._outputs, self._outputs.last_hidden_state[index : index + 1, : ids.shape[1]]):
            return self._run(ids)

    def _run(self, ids: torch.Tensor) -> np.ndarray:
        with torch.no_grad():
            logits: torch.Tensor = self._model(input_ids=ids, use_cache=False).logits
        return logits[0].float().numpy()


@contextlib.contextmanager
def given_states(model: PreTrainedModel, outputs: Any, states: torch.Tensor) -> Iterator[None]:
    """Leave of the model's own forward the head and its scaling, on ``states`` ``[B, n, H]``; ``outputs`` are its base model's."""
    outputs = copy.copy(outputs)
    outputs["last_hidden_state"] = states
    base, forward = model.base_model, model.base_model.forward
    base.forward = lambda *_args, **_kwargs: outputs
    try:
        yield
    finally:
        base.forward = forward


def shallow_config(config: Any, layers: int) -> Any:
    """The configuration of the model's own first ``layers`` layers."""
    text = config.get_text_config()
    text.num_hidden_layers = layers
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:layers]
    return config
