"""ONNX Runtime's own format, which is all that a minimal build of it reads, and the list of what such a build has to contain.

A graph in this format is optimised already, for any processor, and holds its weights: models no longer share bytes.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort

from edgespec.errors import ExportError
from edgespec.export.parity.passes import prefill
from edgespec.manifest import ModelSpec
from edgespec.runtime.cores import default_threads
from edgespec.runtime.models.model import Model
from edgespec.runtime.providers.session import DEFAULT_PROVIDERS

CONFIG = "required_operators.config"
LIMIT = 2**31 - 2**20  # offsets in a flatbuffer have 32 bits, one of them a sign
PROOF_TOKENS = 32


def convert(folder: Path, models: Mapping[str, ModelSpec], text: Sequence[int]) -> dict[str, ModelSpec]:
    """Put every graph of ``folder`` into ONNX Runtime's format, in place of ONNX and the files of weights.

    Args:
        folder: of a bundle that is being made.
        models: as in its manifest.
        text: tokens for the proof that both forms compute the same.

    Raises:
        ExportError: a graph is too large for the format, or computes something else in it.
    """
    weights = {name for spec in models.values() for name in spec.weights}
    for name in weights:
        if (folder / name).stat().st_size > LIMIT:
            raise ExportError("--ort-format: a graph with its weights can have 2 GB at most; choose fewer bits, or leave it out")
    converted = {name: _converted(folder, spec) for name, spec in models.items()}
    for name, spec in models.items():
        if spec.reads is None:  # a draft head's tokens say nothing without the target's hidden states
            _prove(folder, name, spec, converted[name], text)
    _write_config(folder, sorted(folder.glob("*.ort")))
    for path in (*folder.glob("*.onnx"), *(folder / name for name in weights)):
        path.unlink()
    return converted


def _converted(folder: Path, spec: ModelSpec) -> ModelSpec:
    profiles = spec.profiles and {
        name: dataclasses.replace(
            profile, graphs=tuple(dataclasses.replace(item, graph=_save(folder, item.graph)) for item in profile.graphs)
        )
        for name, profile in spec.profiles.items()
    }
    variants = spec.variants and {
        name: dataclasses.replace(
            variant,
            graph=_save(folder, variant.graph),
            tree=variant.tree and _save(folder, variant.tree),
            take=variant.take and _save(folder, variant.take),
            put=variant.put and _save(folder, variant.put),
        )
        for name, variant in spec.variants.items()
    }
    spec = dataclasses.replace(spec, fused=None)  # A graph of the target with a head in it would hold all of its weights once more.
    forms = spec.kv_forms and {kind: dataclasses.replace(form, graph=_save(folder, form.graph)) for kind, form in spec.kv_forms.items()}
    return dataclasses.replace(spec, graph=_save(folder, spec.graph), weights=(), profiles=profiles, variants=variants, kv_forms=forms)


def _save(folder: Path, graph: str) -> str:
    """Name of the file that has ``graph`` in the other format."""
    path = (folder / graph).with_suffix(".ort")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED  # beyond it is what depends on the processor
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 4
    options.add_session_config_entry("session.save_model_format", "ORT")
    try:
        ort.InferenceSession(folder / graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions have no common base of their own
        raise ExportError(f"{graph}: cannot be saved in ONNX Runtime's format: {error}") from error
    return path.name


def _prove(folder: Path, name: str, before: ModelSpec, after: ModelSpec, text: Sequence[int]) -> None:
    logits = []
    for spec in (before, after):
        capacity = min(spec.capacity, PROOF_TOKENS)
        model = Model(folder / spec.graph, spec, capacity=capacity, threads=default_threads(), providers=DEFAULT_PROVIDERS)
        logits.append(prefill(model, list(text[:capacity])))
    if not np.array_equal(logits[0], logits[1]):
        raise ExportError(f"{name}: computes something else in ONNX Runtime's format; please report it, and leave --ort-format out")


def _write_config(folder: Path, graphs: Sequence[Path]) -> None:
    """Operators with their types, in the form that ONNX Runtime's build scripts take."""
    from onnxruntime.tools.ort_format_model.utils import create_config_from_models, log

    log.setLevel("WARNING")
    path = folder / CONFIG
    create_config_from_models(graphs, path, enable_type_reduction=True)
    # It names the files as it was given them, by a folder that will have another name.
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("".join(re.sub(r"^# - .*/", "# - ", line) + "\n" for line in lines if line), encoding="utf-8")
