"""GPTQ over a whole model: layer by layer, each fed by the layers before it as they are already quantised.

What a layer's linear modules get to see is summed up as X^T X while the calibration text runs through the float layer;
the layer is then quantised, and runs again with its quantised weights to feed the next one. Results go to disk at once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from edgespec.export.checkpoint import Checkpoint
from edgespec.export.layerwise import LayerWeights, Run, linear_inputs, visit_layers
from edgespec.export.quantise.blockwise import Quantised, dequantise
from edgespec.export.quantise.gptq import gptq, inverse_factor
from edgespec.export.recipe import Plan, Scheme

SEQUENCE = 128  # tokens in a row of the calibration batch


class QuantisedStore:
    """Quantised matrices by the names of their tensors and their schemes, in files that disappear with the store."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="edgespec-")
        self._files: dict[tuple[str, Scheme], tuple[Path, int]] = {}

    def __contains__(self, key: tuple[str, Scheme]) -> bool:
        return key in self._files

    def put(self, name: str, quantised: Quantised) -> None:
        path = Path(self._folder.name) / f"{len(self._files)}.pt"
        torch.save(_tensors(quantised), path)
        self._files[name, quantised.scheme] = path, quantised.columns

    def get(self, name: str, scheme: Scheme) -> Quantised:
        path, columns = self._files[name, scheme]
        return Quantised(scheme, columns, *torch.load(path, weights_only=True))


def _tensors(quantised: Quantised) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return quantised.data, quantised.scales, quantised.zero_points


class _Calibration:
    """The visitor."""

    def __init__(self, weights: LayerWeights, plan: Plan, signed: bool, store: QuantisedStore, on_layer: Callable[[], None]) -> None:
        self._weights, self._plan, self._signed, self._store, self._on_layer = weights, plan, signed, store, on_layer

    def layer(self, _index: int, linears: dict[str, nn.Linear], hidden: torch.Tensor, run: Run) -> torch.Tensor:
        moments = _Moments()
        with linear_inputs(linears, moments.see):
            run(hidden)
        for names, hessian in moments.groups():
            self._quantise(names, hessian)
        result = run(hidden)
        self._on_layer()
        return result

    def head(self, name: str, hidden: torch.Tensor, _run: Run) -> None:
        x = hidden.flatten(0, -2)
        self._quantise([name], x.T @ x)

    def _quantise(self, names: list[str], hessian: torch.Tensor) -> None:
        planned = {name: self._plan.scheme(name) for name in names}
        wanted = {name: scheme for name, scheme in planned.items() if scheme is not None and (name, scheme) not in self._store}
        if not wanted:
            return
        factor = inverse_factor(hessian)
        for name, scheme in wanted.items():
            weight = self._weights[name]
            if self._signed:
                self._store.put(name, gptq(weight, scheme.as_signed, factor))
            quantised = gptq(weight, scheme, factor)
            self._store.put(name, quantised)
            self._weights.changed[name] = dequantise(quantised)


class _Moments:
    """X^T X of each input that is seen; modules that are given the same tensor share one."""

    def __init__(self) -> None:
        self._inputs: dict[int, tuple[torch.Tensor, torch.Tensor, list[str]]] = {}

    def see(self, name: str, x: torch.Tensor) -> None:
        if id(x) not in self._inputs:
            rows = x.flatten(0, -2)
            self._inputs[id(x)] = (x, rows.T @ rows, [])  # x is held, so that its id stays its own
        self._inputs[id(x)][2].append(name)

    def groups(self) -> list[tuple[list[str], torch.Tensor]]:
        return [(names, moment) for _, moment, names in self._inputs.values()]


def calibrated(
    checkpoint: Checkpoint, config: Any, ids: list[int], plan: Plan, signed: bool, on_layer: Callable[[], None] = lambda: None
) -> QuantisedStore:
    """Every linear weight that ``plan`` wants quantised, by GPTQ on the text ``ids``; ``signed`` numbers of the same schemes as well."""
    store = QuantisedStore()
    limit = getattr(config.get_text_config(), "max_position_embeddings", None) or SEQUENCE
    visit_layers(
        checkpoint, config, batched(ids, min(SEQUENCE, limit)), lambda weights: _Calibration(weights, plan, signed, store, on_layer)
    )
    return store


def batched(ids: list[int], length: int) -> torch.Tensor:
    """One text as int64 ``[B, length]``; what does not fill the last row is left away, a text shorter than one row is one."""
    length = min(length, len(ids))
    rows = len(ids) // length
    return torch.tensor(ids[: rows * length]).view(rows, length)
