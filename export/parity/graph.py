"""Is the exported graph the original model? Asked with the very weights that were stored, so that quantisation has no part in it.

The same graph with its arithmetic in float answers to the last digits: a swapped matrix, a forgotten scale or a rotation the other
way round stands out by orders of magnitude, whatever the weights are stored as. As it runs for users it rounds activations to 8 bits,
and what that adds has a limit of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from edgespec.export.parity.compare import compare, mean
from edgespec.export.parity.passes import Rollback
from edgespec.export.reference import Reference
from edgespec.export.stored import StoredWeights
from edgespec.manifest import Fidelity, ModelSpec
from edgespec.runtime.cores import default_threads
from edgespec.runtime.models.model import Model
from edgespec.runtime.providers.session import DEFAULT_PROVIDERS

TOKENS = 60  # of a text
FLOAT_TEXTS = 1  # 8-bit kernels in float arithmetic unpack all weights in every pass
ACCURACY_LEVEL, FLOAT32 = "accuracy_level", 1
ROUNDING_EXPERTS = 8  # bits of QMoE at which it rounds activations on every accuracy level


@dataclasses.dataclass(frozen=True)
class GraphCheck:
    """Distances of the graph from torch on the stored weights.

    ``exact`` in float arithmetic, ``rounded`` as it runs; they are the same where the graph rounds no activations. ``always_rounds``
    says that it has operators that round in both.
    """

    exact: Fidelity
    rounded: Fidelity
    always_rounds: bool


def check_graph(graph: Path, spec: ModelSpec, stored: StoredWeights, config: Any, texts: Sequence[list[int]]) -> GraphCheck:
    """Run ``texts`` with a rollback on the way through the graph and through the model of ``config`` in torch."""
    capacity = min(spec.capacity, 256)
    plans = [Rollback.of(text[: min(TOKENS, capacity)], spec.vocab_size) for text in texts]
    wanted = _wanted(stored, config, plans)  # torch's weights are gone again when ONNX Runtime's come

    def distance(path: Path, count: int) -> Fidelity:
        model = Model(path, spec, capacity=capacity, threads=default_threads(), providers=DEFAULT_PROVIDERS)
        return mean([compare(*pair) for pair in zip(wanted[:count], (plan.run(model) for plan in plans[:count]), strict=True)])

    return both_arithmetics(graph, distance, len(plans))


def both_arithmetics(graph: Path, distance: Callable[[Path, int], Fidelity], texts: int) -> GraphCheck:
    """``distance`` of a graph from torch on so many of the texts, as it runs and in float arithmetic."""
    rounded = distance(graph, texts)
    with _in_float_arithmetic(graph) as found:
        if found is None:
            return GraphCheck(rounded, rounded, always_rounds=False)
        path, always_rounds = found
        return GraphCheck(distance(path, FLOAT_TEXTS), rounded, always_rounds)


def _wanted(stored: StoredWeights, config: Any, plans: Sequence[Rollback]) -> list[np.ndarray]:
    reference = Reference(stored, config, [ids for plan in plans for ids in (plan.ids, plan.other)])
    return [plan.wanted(reference.logits(2 * index), reference.logits(2 * index + 1)) for index, plan in enumerate(plans)]


@contextlib.contextmanager
def _in_float_arithmetic(graph: Path) -> Iterator[tuple[Path, bool] | None]:
    """The graph with operators that do not round activations, in a file beside it while it is needed, and whether some still do.

    None when none of its operators rounds anyway.
    """
    model = onnx.load(graph, load_external_data=False)
    levels = [attribute for node in model.graph.node for attribute in node.attribute if attribute.name == ACCURACY_LEVEL]
    if not levels:
        yield None
        return
    for attribute in levels:
        attribute.i = FLOAT32
    experts = [attribute.i for node in model.graph.node for attribute in node.attribute if attribute.name == "expert_weight_bits"]
    path = graph.with_name(f"float-{graph.name}")
    try:
        onnx.save(model, path)
        yield path, ROUNDING_EXPERTS in experts
    finally:
        path.unlink(missing_ok=True)
