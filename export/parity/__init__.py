"""The export's proof, in two questions that are asked apart.

1. Does the graph compute what the original does? Against torch on the weights as they are stored, at the limits of float arithmetic.
2. How far have the stored weights, and activations in 8 bits, taken it from the original? Against torch on the original weights, on
   held text and on text that the exported model writes itself: its own words are what most of its tokens will stand behind.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgespec.export.checkpoint import Checkpoint
from edgespec.export.parity.compare import compare, mean
from edgespec.export.parity.graph import both_arithmetics, check_graph
from edgespec.export.parity.limits import DIVERGENCE, EXACT, require, require_graph
from edgespec.export.parity.passes import go_on, prefill
from edgespec.export.reference import Reference
from edgespec.export.stored import StoredWeights
from edgespec.manifest import Fidelity, ModelSpec
from edgespec.runtime.cores import default_threads
from edgespec.runtime.models.kv import in_form
from edgespec.runtime.models.model import Model
from edgespec.runtime.providers.session import DEFAULT_PROVIDERS

__all__ = ["DIVERGENCE", "EXACT", "Original", "both_arithmetics", "check", "compare", "mean", "prefill", "require", "require_graph"]

GRAPH_TEXTS = 3
MAX_ROWS, MIN_ROWS, ROWS_TIMES_PARAMETERS = 96, 48, 30 * 10**9  # of one text
WRITTEN = 2  # texts that the model goes on writing


@dataclasses.dataclass(frozen=True)
class Original:
    """The model to compare with: its weights, a configuration (a shallow one for an early-exit draft), and how many ``parameters`` it
    has: a large one is given less text, since it runs in torch."""

    checkpoint: Checkpoint
    config: Any
    parameters: int


def check(
    name: str,
    folder: Path,
    spec: ModelSpec,
    stored: StoredWeights,
    original: Original,
    texts: Sequence[list[int]],
    kv_dtypes: Sequence[str],
) -> dict[str, Fidelity]:
    """Prove and measure the model ``name`` of a bundle on ``texts``, token sequences of at least four tokens each.

    The graph is proven over float32 caches, where its arithmetic can be told from the original's; then it is measured over each of the
    ``kv_dtypes`` that users run it with.

    Raises:
        ExportError: the graph is not the original's.
    """
    found = check_graph(folder / spec.graph, spec, stored, original.config, texts[:GRAPH_TEXTS])
    require_graph(name, found)
    measured = {}
    for kv_dtype in kv_dtypes:
        form = in_form(spec, kv_dtype)
        fidelity = divergence(folder / form.graph, form, original, texts)
        measured[kv_dtype] = dataclasses.replace(fidelity, graph_rms=found.exact.relative_rms, rounding_kl=found.rounded.kl)
    return measured


def divergence(graph: Path, spec: ModelSpec, original: Original, texts: Sequence[list[int]]) -> Fidelity:
    """Distance of the graph, as it runs for users, from the original weights in torch."""
    rows = min(MAX_ROWS, max(MIN_ROWS, ROWS_TIMES_PARAMETERS // max(1, original.parameters)))
    held, found = _exported(graph, spec, [text[:rows] for text in texts])
    reference = Reference(original.checkpoint, original.config, held)
    return mean([compare(reference.logits(index), found[index], np.array(text[1:])) for index, text in enumerate(held)])


def _exported(graph: Path, spec: ModelSpec, texts: list[list[int]]) -> tuple[list[list[int]], list[np.ndarray]]:
    """Texts, some of the model's own among them, and its logits of each. Its weights leave memory before torch's come."""
    model = Model(graph, spec, capacity=min(spec.capacity, 256), threads=default_threads(), providers=DEFAULT_PROVIDERS)
    held = [text[: model.capacity] for text in texts]
    held += [go_on(model, text, seed) for seed, text in enumerate(held[-WRITTEN:])]
    return held, [prefill(model, text) for text in held]
