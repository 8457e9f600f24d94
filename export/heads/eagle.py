"""EAGLE heads (Li et al. 2024 a, b, 2025) in a bundle: traced as a decoder of its own, with features as one more input.

    features [1, A, F] float        the target's hidden states
    own_features [1, B, H] float    EAGLE-3 only: the head's own, for rows that the target has not seen; A + B = S
    hidden_states [1, S, H] float   the features of this pass, for the next

Everything else is the graph contract, so it has a KV cache like any model. Tensors that are the target's are stored once.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch
from accelerate.hooks import attach_align_device_hook

from edgespec.export import parity
from edgespec.export.config import ExportConfig
from edgespec.export.heads.base import Head, TargetShape, Workplace, head_method, head_scheme
from edgespec.export.heads.eagle_layout import Layout, open_layout
from edgespec.export.heads.eagle_module import EagleModule
from edgespec.export.heads.proof import Sample, share_right
from edgespec.export.passes import pipeline
from edgespec.export.reference import FloatWeights, Weights
from edgespec.export.stored import StoredWeights
from edgespec.export.trace.exporting import trace
from edgespec.export.trace.model import tied_names
from edgespec.export.trace.windows import check_windows
from edgespec.manifest import Fidelity, ModelSpec
from edgespec.runtime.cores import default_threads
from edgespec.runtime.models.model import Model
from edgespec.runtime.providers.session import DEFAULT_PROVIDERS


def open_eagle(source: str, target: TargetShape) -> EagleHead:
    """A head in a folder or on the Hub; errors are those of :func:`edgespec.export.heads.eagle_layout.open_layout`."""
    return EagleHead(open_layout(source, target))


class EagleHead(Head):
    kind = "eagle"

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout.checkpoint, layout.taps)
        self.structure = layout.structure
        self.token_ids = layout.token_ids
        self._stored: StoredWeights | None = None

    def write(self, place: Workplace) -> ModelSpec:
        module = EagleModule(self.structure)
        traced = trace(module, module.feature_inputs())
        check_windows(module.config, traced.layers, place.target.capacity)
        plan = self.checkpoint.plan(head_scheme(place.config), place.target_plan)
        model = traced.model
        pipeline(plan, capacity=place.target.capacity)(model)
        places = place.weights.fill(model.graph, self.checkpoint, method=head_method(place.config))
        place.weights.flush()
        shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters(remove_duplicate=False)}
        self._stored = StoredWeights(place.weights.path, places, shapes, self.checkpoint)
        ir.save(model, place.folder / "eagle.onnx")
        token_ids = None
        if self.token_ids is not None:
            token_ids = "eagle.tokens"
            (place.folder / token_ids).write_bytes(self.token_ids.astype("<i4").tobytes())
        return self.spec(
            place,
            architecture="eagle3" if self.structure.three else "eagle",
            weights=(place.weights.path.name,),
            layers=traced.layers,
            vocab_size=traced.vocab_size,
            hidden_size=module.hidden_size,
            hidden_states=module.hidden_size,
            token_ids=token_ids,
        )

    def prove(self, folder: Path, spec: ModelSpec, samples: list[Sample], config: ExportConfig) -> ModelSpec:
        assert self._stored is not None, "it was written"
        meant = self._in_torch(self._stored, samples)
        graph = folder / spec.graph
        logits: dict[Path, list[np.ndarray]] = {}

        def distance(path: Path, texts: int) -> Fidelity:
            logits[path] = _exported(path, spec, samples[:texts])
            return parity.mean([parity.compare(*pair) for pair in zip(meant[:texts], logits[path], strict=True)])

        check = parity.both_arithmetics(graph, distance, len(samples))
        parity.require_graph(self.kind, check)
        found = logits[graph]
        original = self._in_torch(self.checkpoint, samples)
        fidelity = parity.mean([parity.compare(*pair) for pair in zip(original, found, strict=True)])
        parity.require(self.kind, fidelity, config.draft_weights or config.weights, config.max_kl)
        fidelity = dataclasses.replace(fidelity, graph_rms=check.exact.relative_rms, rounding_kl=check.rounded.kl)
        ids = np.arange(self.structure.rows) if self.token_ids is None else self.token_ids
        right = share_right(samples, [ids[logits.argmax(-1)] for logits in found], 2)  # row j has seen token j + 1
        return dataclasses.replace(spec, fidelity=fidelity, accuracy=((right,),))

    def _in_torch(self, weights: Weights, samples: list[Sample]) -> list[np.ndarray]:
        """Logits [n - 1, Vd] of each sample."""
        module = EagleModule(self.structure, "eager")
        by_name = FloatWeights(weights, tied_names(module))
        attach_align_device_hook(module, execution_device=torch.device("cpu"), offload=True, weights_map=by_name)
        return [module.logits(sample.tokens[1:], sample.features[:-1]) for sample in samples]


def _exported(graph: Path, spec: ModelSpec, samples: list[Sample]) -> list[np.ndarray]:
    """The same from the graph."""
    capacity = max(len(sample.tokens) for sample in samples)
    model = Model(graph, spec, capacity=capacity, threads=default_threads(), providers=DEFAULT_PROVIDERS)
    found = []
    for sample in samples:
        model.keep(0)
        found.append(model.run(sample.tokens[1:], range(len(sample.tokens) - 1), features=sample.features[:-1]).copy())
    return found
