"""The npu profile: a model once more, as graphs of fixed shapes out of standard operators.

With float activations they are over the bundle's own weights; with whole numbers over signed ones that the graphs share.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from edgespec.errors import CapacityError, UnsupportedModelError
from edgespec.export.activations import activation_ranges
from edgespec.export.heads.proof import PROMPT, SAMPLES, write_samples
from edgespec.export.passes import Pipeline, StaticSizes
from edgespec.export.passes.base import dialect_nodes
from edgespec.export.passes.quantise_activations import Ranges
from edgespec.export.passes.static_attention import check_attention
from edgespec.manifest import ModelSpec, StaticGraph, StaticProfile
from edgespec.runtime.providers.providers import NPU

MOST_TOKENS = 512  # of the text that activations are calibrated with

WriteGraph = Callable[[Pipeline, str], object]
"""Rewrites a copy of the traced graph by these passes and saves it, with its weights, under this name."""


def write_graphs(name: str, pipelines: Mapping[StaticSizes, Pipeline], write: WriteGraph) -> StaticProfile:
    """Have one graph of the model ``name`` written for each of the sizes."""
    graphs = []
    for size, passes in pipelines.items():
        graphs.append(StaticGraph(f"{name}.{NPU}.{size.width}.onnx", size.width, size.rows))
        write(passes, graphs[-1].graph)
    return StaticProfile(next(iter(pipelines)).capacity, tuple(graphs))


def write_integer_graphs(
    name: str,
    folder: Path,
    spec: ModelSpec,
    pipelines: Callable[[Ranges], Mapping[StaticSizes, Pipeline]],
    write: WriteGraph,
    ids: Sequence[int],
) -> StaticProfile:
    """The same with activations and cache of whole numbers.

    Args:
        name: of the model.
        folder: of the bundle.
        spec: the model with its usual graph, which is in the folder already.
        pipelines: the passes for each size, given ranges; with none they leave activations float.
        write: as for :func:`write_graphs`.
        ids: text to calibrate with, besides text that the model writes.
    """
    sizes = pipelines({})
    size = [*sizes][-2]  # a verification pass: logits for every row, and little memory for what is looked at
    probe = f"{name}.{NPU}.calibration.onnx"
    write(sizes[size], probe)
    start = ids[:MOST_TOKENS]
    prompts = [list(start[first : first + PROMPT]) for first in range(0, len(start), max(1, len(start) // SAMPLES))][:SAMPLES]
    written = write_samples(folder / spec.graph, spec, prompts, spec.vocab_size)
    ranges = activation_ranges(folder / probe, spec, [start, *(sample.tokens for sample in written)])
    (folder / probe).unlink()
    return dataclasses.replace(write_graphs(name, pipelines(ranges), write), kv_dtype="uint16")


def static_sizes(widths: Sequence[int], capacity: int) -> list[StaticSizes]:
    """Every row of a graph gets logits, but of a chunk of the prompt, the widest, only as many as of a verification pass."""
    return [StaticSizes(width, min(width, widths[-2]), capacity) for width in widths]


def check(traced: ir.Model, widths: Sequence[int], capacity: int, integer: bool) -> None:
    """Refuse what the profile cannot be made of; ``integer`` for activations of whole numbers.

    Raises:
        CapacityError: the chunk is wider than the cache.
        UnsupportedModelError: a layer with attention of another kind, or with experts.
    """
    for _ in dialect_nodes(traced.graph, "Experts") if integer else ():
        raise UnsupportedModelError("--npu-activations int16: a mixture of experts has no such form; leave the option out")
    if widths[-1] > capacity:
        raise CapacityError(f"--npu-widths: a pass of {widths[-1]} tokens is wider than the cache of {capacity}; choose a narrower one")
    check_attention(traced.graph)
