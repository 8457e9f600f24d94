"""How an initializer of a graph is made from tensors of the checkpoint.

Graphs are rewritten before any weight is read, so a merged or quantised initializer is only a description until
:mod:`edgespec.export.weights` streams it to disk. The description travels in the value's metadata.
"""

from __future__ import annotations

import dataclasses
import json

import onnx_ir as ir
import torch

KEY = "edgespec.recipe"


@dataclasses.dataclass(frozen=True)
class Scheme:
    """Blockwise quantisation along the last axis: ``bits`` per weight, one scale and zero point per ``block`` weights.

    ``symmetric`` numbers have their zero in the middle, and no zero points are stored. ``signed`` ones have, too, and are stored by
    columns ``[K, N]``, as DequantizeLinear takes them.
    """

    bits: int
    block: int
    symmetric: bool = False
    signed: bool = False

    @property
    def as_signed(self) -> Scheme:
        """As many bits and blocks of signed numbers."""
        return Scheme(self.bits, self.block, signed=True)

    @property
    def is_centred(self) -> bool:
        """Whether the zero is in the middle."""
        return self.symmetric or self.signed


WHOLE = Scheme(16, 0)  # one scale and zero point for the whole tensor


@dataclasses.dataclass(frozen=True)
class Plan:
    """Which scheme each tensor gets: ``default``, or another by the tensor's name. None keeps a tensor float."""

    default: Scheme | None
    exceptions: tuple[tuple[str, Scheme | None], ...] = ()

    @classmethod
    def of(cls, plan: Plan | Scheme | None) -> Plan:
        return plan if isinstance(plan, Plan) else cls(plan)

    def scheme(self, name: str) -> Scheme | None:
        return dict(self.exceptions).get(name, self.default)

    def of_recipe(self, recipe: Recipe) -> Scheme | None:
        """The scheme of a recipe, whose sources have the same one."""
        return self.scheme(recipe.sources[0])


@dataclasses.dataclass(frozen=True)
class Layout:
    """One change of layout: ``op`` is "transpose" with a permutation or "reshape" with a shape."""

    op: str
    dims: tuple[int, ...]

    def apply(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.permute(self.dims) if self.op == "transpose" else tensor.reshape(self.dims)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Each of ``sources`` goes through ``layout``; they are joined along rows, ``offset`` is added, and the result is
    quantised by ``scheme``, one row of the last axis after the other.

    ``part`` says which of the results this initializer is: "float", or "data", "scales", "zero_points" of ``scheme``.
    """

    sources: tuple[str, ...]
    offset: float = 0.0
    scheme: Scheme | None = None
    part: str = "float"
    layout: tuple[Layout, ...] = ()

    def laid_out(self, tensor: torch.Tensor) -> torch.Tensor:
        """A source after ``layout``."""
        for step in self.layout:
            tensor = step.apply(tensor)
        return tensor

    def quantised(self, scheme: Scheme, part: str) -> Recipe:
        return dataclasses.replace(self, scheme=scheme, part=part)


def set_recipe(value: ir.Value, recipe: Recipe) -> None:
    value.metadata_props[KEY] = json.dumps(dataclasses.asdict(recipe))


def get_recipe(value: ir.Value | None) -> Recipe | None:
    """The recipe of a weight without values, None for anything else."""
    text = value.metadata_props.get(KEY) if value is not None else None
    if text is None:
        return None
    fields = json.loads(text)
    scheme = Scheme(**fields["scheme"]) if fields["scheme"] else None
    layout = tuple(Layout(step["op"], tuple(step["dims"])) for step in fields["layout"])
    return Recipe(tuple(fields["sources"]), fields["offset"], scheme, fields["part"], layout)


def weight(graph: ir.Graph, name: str, dtype: ir.DataType, shape: tuple[int, ...], recipe: Recipe) -> ir.Value:
    """The initializer ``name`` of ``graph``, made without values if it has none of that name yet."""
    if name not in graph.initializers:
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
        set_recipe(value, recipe)
        graph.initializers.add(value)  # register_initializer would ask for values
    return graph.initializers[name]
