"""The weights of a bundle as its file holds them: read back, dequantised, and turned into the original model's tensors.

Run in torch these show what the exported graph ought to compute. Against them a graph is held to the limits of float
arithmetic, however coarse its weights are.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from edgespec.export.checkpoint import Checkpoint
from edgespec.export.quantise import Quantised, dequantise
from edgespec.export.quantise.blockwise import middle_zeros
from edgespec.export.recipe import Recipe


@dataclasses.dataclass(frozen=True)
class Place:
    """Bytes of the weight file."""

    offset: int
    length: int


class StoredWeights:
    """The original model's tensors as the weight file knows them.

    Args:
        path: the file.
        places: where it holds the results of a graph's recipes.
        shapes: of the tensors that recipes are made of.
        checkpoint: of the graph; has what no recipe is made of.
    """

    def __init__(self, path: Path, places: Mapping[Recipe, Place], shapes: Mapping[str, tuple[int, ...]], checkpoint: Checkpoint) -> None:
        self._path, self._places, self._shapes, self._checkpoint = path, places, shapes, checkpoint
        self._made = {source: recipe for recipe in places for source in recipe.sources}

    def read_float(self, name: str) -> torch.Tensor:
        """The tensor as float32."""
        recipe = self._made.get(name)
        if recipe is None:
            return self._checkpoint.read_float(name)
        laid_out = [recipe.laid_out(torch.empty(self._shapes[source], device="meta")).shape for source in recipe.sources]
        position = recipe.sources.index(name)
        lengths = [shape[0] for shape in laid_out]
        row_shape = laid_out[position][1:]
        start, end = sum(lengths[:position]), sum(lengths[: position + 1])
        values = self._rows(recipe, start, end, row_shape) - recipe.offset
        return _undone(recipe, values, self._shapes[name])

    def _rows(self, recipe: Recipe, start: int, end: int, row_shape: tuple[int, ...]) -> torch.Tensor:
        """``[end - start, *row_shape]`` of the joined tensor."""
        if recipe.scheme is None:
            return self._part(recipe, "float", np.float32, math.prod(row_shape), start, end).view(-1, *row_shape)
        scheme, columns = recipe.scheme, row_shape[-1]
        matrix_rows = math.prod(row_shape[:-1])  # more than one where a row of the tensor is a matrix: experts
        start, end = start * matrix_rows, end * matrix_rows
        blocks = math.ceil(columns / scheme.block)
        data = self._part(recipe, "data", np.uint8, blocks * scheme.block * scheme.bits // 8, start, end)
        scales = self._part(recipe, "scales", np.float32, blocks, start, end)
        if scheme.symmetric:
            zeros = middle_zeros(scheme, len(data), blocks)
        else:
            zeros = self._part(recipe, "zero_points", np.uint8, math.ceil(blocks * scheme.bits / 8), start, end)
        return dequantise(Quantised(scheme, columns, data.view(len(data), blocks, -1), scales, zeros)).view(-1, *row_shape)

    def _part(self, recipe: Recipe, part: str, dtype: type[np.generic], width: int, start: int, end: int) -> torch.Tensor:
        """Rows ``start`` to ``end`` of one part as ``[end - start, width]``."""
        place, row = self._places[dataclasses.replace(recipe, part=part)], width * np.dtype(dtype).itemsize
        assert end * row <= place.length, (recipe, part, place)
        count = (end - start) * width
        return torch.from_numpy(np.fromfile(self._path, dtype, count, offset=place.offset + start * row)).view(end - start, width)


def _undone(recipe: Recipe, values: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """``values`` before the recipe's layout, when the tensor had ``shape``."""
    before = list(itertools.accumulate(recipe.layout, lambda tensor, step: step.apply(tensor), initial=torch.empty(shape, device="meta")))
    for step, tensor in zip(reversed(recipe.layout), reversed(before[:-1]), strict=True):
        values = values.permute(np.argsort(step.dims).tolist()) if step.op == "transpose" else values.reshape(tensor.shape)
    return values.reshape(shape).contiguous()
