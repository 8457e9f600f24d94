"""Streaming weights to the external data file: one recipe at a time, each set of bytes once.

Graphs come here with initializers that are only recipes. Each is read from the checkpoint, joined, quantised and
appended; the initializer then points at its place in the file. Peak memory is one joined matrix and its quantised form.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import numpy as np
import onnx_ir as ir
import torch

from edgespec.export.checkpoint import Checkpoint, Origin
from edgespec.export.quantise import Quantised, join, quantise
from edgespec.export.quantise.qdq import signed_parts, whole_parts
from edgespec.export.recipe import KEY, WHOLE, Recipe, Scheme, get_recipe
from edgespec.export.stored import Place

ALIGNMENT = 4096  # a page, so that ONNX Runtime can map each tensor where it lies
SMALL = 1024  # smaller tensors are not mapped apart and only need their type's alignment


Ready = Callable[[str, Scheme], Quantised | None]
"""A tensor that is quantised already, by its name, if there is one in that scheme."""


class WeightFile:
    """The external data file of a bundle. Models that are written into it share the bytes of equal recipes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("wb")
        self._places: dict[tuple[Origin, Recipe], Place] = {}

    def __enter__(self) -> WeightFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def fill(
        self,
        graph: ir.Graph,
        checkpoint: Checkpoint,
        on_tensor: Callable[[int], None] | None = None,
        ready: Ready | None = None,
        method: str = "search",
    ) -> dict[Recipe, Place]:
        """Write what the graph's recipes describe, point its initializers there, and say where that is.

        ``on_tensor`` is told of the number of initializers done, for a progress bar. Tensors of another ``checkpoint``
        are other tensors, though they may bear the same names. What ``ready`` has is taken from it, the rest is
        quantised by ``method``.
        """
        places: dict[Recipe, Place] = {}
        for value in list(graph.initializers.values()):
            recipe = get_recipe(value)
            if recipe is None:
                continue
            owner, owned = checkpoint.owner(recipe)
            key = (owner.origin, owned)
            if key not in self._places:
                for part, array in _make(owned, owner, ready, method).items():
                    self._places[owner.origin, dataclasses.replace(owned, part=part)] = self._append(array)
            places[recipe] = self._places[key]
            self._point(value, places[recipe])
            del value.metadata_props[KEY]
            if on_tensor:
                on_tensor(1)
        return places

    def flush(self) -> None:
        """Hand everything written so far to the system, so that a graph can be loaded from the file."""
        self._file.flush()

    def _append(self, array: np.ndarray) -> Place:
        alignment = ALIGNMENT if array.nbytes >= SMALL else 64
        position = self._file.tell()
        offset = -(-position // alignment) * alignment
        self._file.write(bytes(offset - position))
        self._file.write(np.ascontiguousarray(array).data)
        return Place(offset, array.nbytes)

    def _point(self, value: ir.Value, place: Place) -> None:
        assert value.shape is not None
        assert value.dtype is not None
        value.const_value = ir.ExternalTensor(
            self.path.name, place.offset, place.length, value.dtype, shape=value.shape, name=value.name or "", base_dir=self.path.parent
        )


def count_recipes(graph: ir.Graph) -> int:
    """Initializers that :meth:`WeightFile.fill` has to write."""
    return sum(get_recipe(value) is not None for value in graph.initializers.values())


def _make(recipe: Recipe, checkpoint: Checkpoint, ready: Ready | None, method: str) -> dict[str, np.ndarray]:
    """All parts that come from the same sources and scheme."""
    if ready and recipe.scheme and not recipe.layout and not recipe.offset:
        scheme = recipe.scheme
        found = [quantised for name in recipe.sources if (quantised := ready(name, scheme)) is not None]
        if len(found) == len(recipe.sources):
            return _parts(join(found))
    tensors = [recipe.laid_out(checkpoint.read_float(name)) for name in recipe.sources]
    joined = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
    del tensors
    if recipe.offset:
        joined = joined + recipe.offset
    if recipe.scheme is None:
        return {"float": joined.numpy()}
    if recipe.scheme == WHOLE:
        return whole_parts(joined.numpy())
    return _parts(quantise(joined.reshape(-1, joined.shape[-1]), recipe.scheme, method))


def _parts(quantised: Quantised) -> dict[str, np.ndarray]:
    if quantised.scheme.signed:
        return signed_parts(quantised)
    parts = {"data": quantised.data.numpy(), "scales": quantised.scales.numpy()}
    return parts if quantised.scheme.symmetric else {**parts, "zero_points": quantised.zero_points.numpy()}
