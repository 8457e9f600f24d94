"""What a draft head is to the exporter."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch

from edgespec.errors import CheckpointError
from edgespec.export.checkpoint import Checkpoint, Origin
from edgespec.export.config import ExportConfig
from edgespec.export.heads.files import Tensors
from edgespec.export.heads.proof import Sample
from edgespec.export.quantise.choice import BITS, quantisation_of
from edgespec.export.recipe import Plan, Recipe, Scheme
from edgespec.export.weights import WeightFile
from edgespec.manifest import ModelSpec, Source


@dataclasses.dataclass(frozen=True)
class TargetShape:
    """What a head must fit: the target's hidden size H, vocabulary V and number of layers, and its matrices.

    Attributes:
        checkpoint: the target's.
        embedding: name of its embedding [V, H] there.
        head: name of its head [V, H]; the embedding's if they are tied.
    """

    hidden_size: int
    vocab_size: int
    layers: int
    checkpoint: Checkpoint
    embedding: str
    head: str


@dataclasses.dataclass(frozen=True)
class Workplace:
    """Where a head is written, and with what: the bundle's folder and its shared weights, the target's entry in the manifest, how the
    target's tensors are quantised, and how many tokens the tokenizer has."""

    folder: Path
    weights: WeightFile
    config: ExportConfig
    target: ModelSpec
    target_plan: Plan
    vocabulary: int


class Head(abc.ABC):
    """An open head, checked against the target. ``taps`` are the hidden states that it reads, in this order side by side."""

    kind: ClassVar[str]

    def __init__(self, checkpoint: HeadCheckpoint, taps: tuple[str, ...]) -> None:
        self.checkpoint = checkpoint
        self.taps = taps

    @abc.abstractmethod
    def write(self, place: Workplace) -> ModelSpec:
        """Write the graph and its weights."""

    @abc.abstractmethod
    def prove(self, folder: Path, spec: ModelSpec, samples: list[Sample], config: ExportConfig) -> ModelSpec:
        """Compare what was written with the original in torch, and find how often it foretells the target.

        Raises:
            ExportError: it differs too much.
        """

    def spec(self, place: Workplace, **fields: Any) -> ModelSpec:
        """What the entries of all heads have alike."""
        widths = {tap.name: tap.width for tap in place.target.taps or ()}
        scheme = head_scheme(place.config)
        origin = self.checkpoint.origin
        return ModelSpec(
            graph=f"{self.kind}.onnx",
            capacity=place.target.capacity,
            max_width=place.target.max_width,
            quantisation=quantisation_of(scheme, head_method(place.config)),
            source=Source(origin.name, origin.revision, origin.licence),
            reads=self.taps,
            features=sum(widths[tap] for tap in self.taps),
            **fields,
        )


class HeadCheckpoint(Checkpoint):
    """A head's tensors under the names that its module has for them.

    Args:
        origin: where they are from.
        config: its configuration.
        stored: the tensors under their stored names.
        names: stored names by the module's.
        borrowed: names of the target's tensors by the module's: those are not stored again.
        target: whose tensors these are.
        rows: of further tensors of the target some rows, by the module's names: the target's name and which rows.
    """

    def __init__(
        self,
        origin: Origin,
        config: Any,
        stored: Tensors,
        names: Mapping[str, str],
        borrowed: Mapping[str, str] | None = None,
        target: Checkpoint | None = None,
        rows: Mapping[str, tuple[str, torch.Tensor]] | None = None,
    ) -> None:
        super().__init__(origin, config)
        self._stored = stored
        self._names = dict(names)
        self.borrowed = dict(borrowed or {})
        self._target = target
        self._rows = dict(rows or {})

    def names(self) -> frozenset[str]:
        return frozenset(self._names) | frozenset(self.borrowed) | frozenset(self._rows)

    def unused(self) -> list[str]:
        return sorted(set(self._stored) - set(self._names.values()))

    def stored_shape(self, name: str) -> tuple[int, ...] | None:
        if name in self._rows and self._target is not None:
            source, chosen = self._rows[name]
            return (len(chosen), *(self._target.stored_shape(source) or self._target[source].shape)[1:])
        return self._stored.shapes[self._names[name]] if name in self._names else None

    def __getitem__(self, name: str) -> torch.Tensor:
        if name in self.borrowed and self._target is not None:
            return self._target[self.borrowed[name]]
        if name in self._rows and self._target is not None:
            source, chosen = self._rows[name]
            return self._target[source][chosen]
        return self._stored[self._names[name]]

    def owner(self, recipe: Recipe) -> tuple[Checkpoint, Recipe]:
        if self._target is None or not all(source in self.borrowed for source in recipe.sources):
            return self, recipe
        return self._target, dataclasses.replace(recipe, sources=tuple(self.borrowed[source] for source in recipe.sources))

    def plan(self, own: Scheme | None, target: Plan) -> Plan:
        """Its own tensors by ``own``, and the target's as the target has them, so that the bytes are the same."""
        exceptions = ((name, target.scheme(source)) for name, source in sorted(self.borrowed.items()))
        return Plan(own, tuple((name, scheme) for name, scheme in exceptions if scheme != own))


def head_scheme(config: ExportConfig) -> Scheme | None:
    """How a head's own matrices are quantised: as a draft's, in 8 bits where that is not one width for all."""
    kind = config.draft_weights or config.weights
    return None if kind == "fp32" else Scheme(BITS.get(kind, 8), config.block_size, config.symmetric)


def head_method(config: ExportConfig) -> str:
    """GPTQ would need a calibration of the head itself; its scales are searched."""
    return "rtn" if config.method == "rtn" else "search"


def need_shape(name: str, tensor: str, found: tuple[int, ...] | None, wanted: tuple[int, ...], why: str) -> None:
    """Raise CheckpointError unless a stored tensor has the shape that the target asks for."""
    if found is None:
        raise CheckpointError(f"{name}: has no tensor {tensor}; the head is incomplete")
    if found != wanted:
        what = f"has shape {list(found)} where {why} asks for {list(wanted)}"
        raise CheckpointError(f"{name}: tensor {tensor} {what}; it is another target's")
