"""The npu profile: a model once more, as graphs of fixed shapes out of standard operators, over the bundle's own weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from edgespec.errors import CapacityError
from edgespec.export.passes import Pipeline, StaticSizes
from edgespec.export.passes.static_attention import check_attention
from edgespec.manifest import StaticGraph, StaticProfile
from edgespec.runtime.providers.providers import NPU

WriteGraph = Callable[[Pipeline, str], object]
"""Rewrites a copy of the traced graph by these passes and saves it, with its weights, under this name."""


def write_graphs(name: str, pipelines: Mapping[StaticSizes, Pipeline], write: WriteGraph) -> StaticProfile:
    """Have one graph of the model ``name`` written for each of the sizes."""
    graphs = []
    for size, passes in pipelines.items():
        graphs.append(StaticGraph(f"{name}.{NPU}.{size.width}.onnx", size.width, size.rows))
        write(passes, graphs[-1].graph)
    return StaticProfile(next(iter(pipelines)).capacity, tuple(graphs))


def static_sizes(widths: Sequence[int], capacity: int) -> list[StaticSizes]:
    """Every row of a graph gets logits, but of a chunk of the prompt, the widest, only as many as of a verification pass."""
    return [StaticSizes(width, min(width, widths[-2]), capacity) for width in widths]


def check(traced: ir.Model, widths: Sequence[int], capacity: int) -> None:
    """Refuse what the profile cannot be made of.

    Raises:
        CapacityError: the chunk is wider than the cache.
        UnsupportedModelError: a layer with attention of another kind.
    """
    if widths[-1] > capacity:
        raise CapacityError(f"--npu-widths: a pass of {widths[-1]} tokens is wider than the cache of {capacity}; choose a narrower one")
    check_attention(traced.graph)
