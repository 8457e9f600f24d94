"""The npu profile: a model once more, as graphs of fixed shapes out of standard operators, over the bundle's own weights.

It is proven against the model's usual graph, which has been proven against the original: the same weights, so they may differ
by no more than arithmetic in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from edgespec.errors import CapacityError, ExportError
from edgespec.export import parity
from edgespec.export.parity.limits import EXACT, ROUNDED
from edgespec.export.passes import Pipeline, StaticSizes
from edgespec.export.passes.static_attention import check_attention
from edgespec.manifest import ModelSpec, StaticGraph, StaticProfile
from edgespec.runtime.model import Model
from edgespec.runtime.placement import Placement
from edgespec.runtime.profiles import static_spec
from edgespec.runtime.session import DEFAULT_PROVIDERS, default_threads
from edgespec.runtime.static_model import StaticModel

NPU = "npu"
PROOF_TEXTS, PROOF_TOKENS = 3, 96


def write_graphs(
    folder: Path, name: str, model: ir.Model, pipelines: Mapping[StaticSizes, Pipeline], fill: Callable[[ir.Graph], object]
) -> StaticProfile:
    """Rewrite copies of the traced ``model``, ``fill`` them with weights, and save them in ``folder``, one for each of the sizes."""
    graphs = []
    for size, passes in pipelines.items():
        graph = model.clone()
        passes(graph)
        fill(graph.graph)
        file = f"{name}.{NPU}.{size.width}.onnx"
        ir.save(graph, folder / file)
        graphs.append(StaticGraph(file, size.width, size.rows))
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


def prove(folder: Path, spec: ModelSpec, weights: str, name: str, texts: Sequence[Sequence[int]]) -> None:
    """Compare the graphs with the model's usual one on these token sequences.

    Raises:
        ExportError: they differ by more than ``weights`` of that type excuse.
    """
    assert spec.profiles is not None
    place = Placement(DEFAULT_PROVIDERS, default_threads(), profile=NPU)
    static = StaticModel(folder, static_spec(spec, NPU, name), spec.profiles[NPU], place)
    usual = Model(folder / spec.graph, spec, capacity=static.capacity, threads=place.threads, providers=place.providers)
    limits = EXACT if weights == "fp32" else ROUNDED
    for text in texts[:PROOF_TEXTS]:
        ids = list(text[: min(PROOF_TOKENS, static.capacity)])
        wanted, logits = (_logits(model, ids, static.spec.max_width) for model in (usual, static))
        found = parity.compare(wanted, logits)
        if not (found.kl <= limits.kl and found.relative_rms <= limits.relative_rms):
            raise ExportError(
                f"{name}: logits of its {NPU} profile are off from its usual graph by {found.relative_rms:.2g} of their spread "
                f"(at most {limits.relative_rms:g}); this is a fault of the translation, please report it with the model's name"
            )


def _logits(model: Model | StaticModel, ids: list[int], width: int) -> np.ndarray:
    """Logits ``[n, V]`` of passes of every kind: a prompt, a tree of which the second branch is kept, a chain, single tokens."""
    chunk = max(1, len(ids) - 2 * width)
    model.keep(0)
    rows = [model.run(ids[:chunk], [chunk - 1]).copy()]
    following = ids[chunk : chunk + 2]
    if width >= 3 and len(following) == 2:
        rows.append(model.run([following[0], ids[0], following[1]], range(3), (-1, 0, 0)).copy())
        model.keep_path(chunk, (0, 2))
    for step in (width, 1, 1):
        tokens = ids[model.length : model.length + step]
        if tokens:
            rows.append(model.run(tokens, range(len(tokens))).copy())
    return np.concatenate(rows)
