"""``--weights mixed``: bits and block size per tensor, more where an error does most harm, within a number of bytes.

Harm is measured, not guessed from the weights: while calibration text runs through the original, each group of matrices (those that
read the same input, which are merged later) is quantised alone, its layer runs again, and the change of the layer's output counts
in parts of that output's own power. What a layer adds to the residual stream is kept by the layers after it, so these numbers
compare across layers; for the head the output is the logits. Upgrades are then bought greedily by the error that they save per byte.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from edgespec.errors import UsageError
from edgespec.export.checkpoint import Checkpoint
from edgespec.export.layerwise import LayerWeights, Run, linear_inputs, visit_layers
from edgespec.export.quantise.blockwise import dequantise, quantise
from edgespec.export.quantise.calibrate import batched
from edgespec.export.recipe import Plan, Scheme

TOKENS, SEQUENCE = 512, 64
ALLOWANCE = 1.10  # bytes over the smallest form of all matrices, unless the user says how many


@dataclasses.dataclass(frozen=True)
class Sensitivity:
    """One group of matrices: the harm of each candidate scheme, and its ``weights``, a number."""

    names: tuple[str, ...]
    weights: int
    harm: dict[Scheme, float]


def bytes_of(scheme: Scheme, weights: int) -> float:
    """Codes, float scales and packed zero points."""
    return weights * (scheme.bits / 8 + (4 + scheme.bits / 8) / scheme.block)


def candidates(block: int) -> tuple[Scheme, ...]:
    """The smallest first."""
    finer = (Scheme(4, 32),) if block > 32 else ()
    return (Scheme(4, block), *finer, Scheme(8, block))


class _Measurement:
    """The visitor."""

    def __init__(self, weights: LayerWeights, schemes: tuple[Scheme, ...], on_layer: Callable[[], None]) -> None:
        self._weights, self._schemes, self._on_layer = weights, schemes, on_layer
        self.found: list[Sensitivity] = []

    def layer(self, _index: int, linears: dict[str, nn.Linear], hidden: torch.Tensor, run: Run) -> torch.Tensor:
        inputs: dict[int, tuple[torch.Tensor, list[str]]] = {}
        with linear_inputs(linears, lambda name, x: inputs.setdefault(id(x), (x, []))[1].append(name)):
            wanted = run(hidden)
        for _, names in inputs.values():
            self._measure(tuple(names), hidden, wanted, run)
        self._on_layer()
        return wanted

    def head(self, name: str, hidden: torch.Tensor, run: Run) -> None:
        rows = hidden[:2]  # logits are large
        self._measure((name,), rows, run(rows), run)

    def _measure(self, names: tuple[str, ...], hidden: torch.Tensor, wanted: torch.Tensor, run: Run) -> None:
        matrices = {name: self._weights[name] for name in names}
        power, harm = float((wanted - wanted.mean(-1, keepdim=True)).square().mean()), {}
        for scheme in self._schemes:
            self._weights.changed.update({name: dequantise(quantise(matrix, scheme)) for name, matrix in matrices.items()})
            difference = run(hidden) - wanted
            harm[scheme] = float((difference - difference.mean(-1, keepdim=True)).square().mean()) / max(power, 1e-30)
        self._weights.changed.clear()
        self.found.append(Sensitivity(names, sum(matrix.numel() for matrix in matrices.values()), harm))


def sensitivities(
    checkpoint: Checkpoint, config: Any, ids: list[int], block: int, on_layer: Callable[[], None] = lambda: None
) -> list[Sensitivity]:
    """Measure every group of linear weights on the text ``ids``."""
    visitors: list[_Measurement] = []

    def make(weights: LayerWeights) -> _Measurement:
        visitors.append(_Measurement(weights, candidates(block), on_layer))
        return visitors[0]

    limit = getattr(config.get_text_config(), "max_position_embeddings", None) or SEQUENCE
    # Spread over all of the text, since its parts differ: prose, code, languages.
    batch = batched(ids, min(SEQUENCE, limit))
    visit_layers(checkpoint, config, batch[:: max(1, batch.numel() // TOKENS)], make)
    return visitors[0].found


def allot(found: list[Sensitivity], block: int, target_size: int | None) -> Plan:
    """The plan with the least harm within ``target_size`` bytes, by default a tenth more than the smallest form takes.

    Raises:
        UsageError: not even the smallest form fits.
    """
    schemes = candidates(block)
    chosen = dict.fromkeys((group.names for group in found), schemes[0])
    spent = sum(bytes_of(schemes[0], group.weights) for group in found)
    budget = target_size if target_size is not None else spent * ALLOWANCE
    if budget < spent:
        raise UsageError(f"--target-size: {target_size} bytes are too few; at 4 bits in blocks of {block} it is {spent:.0f}")
    while True:
        upgrades = [
            ((group.harm[chosen[group.names]] - group.harm[scheme]) / cost, cost, group.names, scheme)
            for group in found
            for scheme in schemes
            if 0 < (cost := bytes_of(scheme, group.weights) - bytes_of(chosen[group.names], group.weights)) <= budget - spent
        ]
        if not upgrades:
            break
        gain, cost, names, scheme = max(upgrades, key=lambda upgrade: upgrade[0])
        if gain <= 0:
            break
        chosen[names], spent = scheme, spent + cost
    exceptions = tuple((name, scheme) for names, scheme in chosen.items() for name in names if scheme != schemes[0])
    return Plan(schemes[0], exceptions)


def describe(found: list[Sensitivity], plan: Plan) -> str:
    """The table of what was chosen, one line per group, the most harmful first."""
    lines = [f"{'harm at 4 bits':>14}  {'now':>8}  form     tensors"]
    for group in sorted(found, key=lambda group: -max(group.harm.values())):
        scheme = plan.scheme(group.names[0])
        assert scheme is not None
        worst = next(iter(group.harm.values()))
        lines.append(f"{worst:14.2e}  {group.harm[scheme]:8.1e}  {scheme.bits} x {scheme.block:<4} {' | '.join(group.names)}")
    return "\n".join(lines)
