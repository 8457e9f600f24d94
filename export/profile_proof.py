"""Other profiles of a model are proven against its usual graph, which has been proven against the original: the same weights, so they may
differ by no more than arithmetic in another order. Graphs that compute with whole numbers have other weights, and are that much off."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edgespec.errors import ExportError
from edgespec.export import parity
from edgespec.export.parity.limits import DIVERGENCE, EXACT, FAULT, HALF, ROUNDED, within
from edgespec.manifest import Fidelity, ModelSpec
from edgespec.runtime.cores import default_threads
from edgespec.runtime.models.model import Model
from edgespec.runtime.providers.placement import Placement
from edgespec.runtime.providers.profiles import open_model, profile_spec
from edgespec.runtime.providers.providers import DYNAMIC
from edgespec.runtime.providers.session import DEFAULT_PROVIDERS

PROOF_TEXTS, PROOF_TOKENS = 3, 96


def prove(folder: Path, spec: ModelSpec, weights: str, name: str, profile: str, texts: Sequence[Sequence[int]]) -> Fidelity:
    """Compare the graphs of ``profile`` with the usual one of the model ``name`` on these token sequences; how far they are from it.

    Raises:
        ExportError: they differ by more than ``weights`` of that type excuse.
    """
    place = Placement(DEFAULT_PROVIDERS, default_threads(), profile=profile)
    capacity = min(PROOF_TOKENS, spec.capacity)
    model = open_model(folder, profile_spec(spec, profile, name), place, capacity=capacity)
    usual = open_model(folder, spec, dataclasses.replace(place, profile=DYNAMIC), capacity=capacity)
    limits = ROUNDED if weights != "fp32" else HALF if model.spec.kv_dtype == "float16" else EXACT
    if model.spec.kv_dtype == "uint16":
        # Its weights are rounded in another way, and so is what products take on the CPU.
        limits = DIVERGENCE[weights].or_wider(ROUNDED)
    parts = []
    for text in texts[:PROOF_TEXTS]:
        wanted, logits = (_logits(each, list(text[:capacity]), model.spec.max_width) for each in (usual, model))
        if not np.isfinite(logits).all():
            raise ExportError(
                f"{name}: computes numbers that 16-bit floats cannot hold, as its {profile} profile has them; leave --profile {profile} out"
            )
        found = parity.compare(wanted, logits)
        if not within(found, limits):
            raise ExportError(
                f"{name}: logits of its {profile} profile are off from its usual graph by {found.relative_rms:.2g} of their spread "
                f"(at most {limits.relative_rms:g}); {FAULT}"
            )
        parts.append(found)
    return parity.mean(parts)


def _logits(model: Model, ids: list[int], width: int) -> np.ndarray:
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
