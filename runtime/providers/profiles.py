"""Which graphs of a bundle run: the one that every model has, for passes of any width, or those of another profile."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from edgespec.errors import BundleError
from edgespec.manifest import Manifest, ModelSpec
from edgespec.runtime.models.device_model import DeviceModel
from edgespec.runtime.models.fused import FusedModel
from edgespec.runtime.models.model import PREFILL_WIDTH, Model
from edgespec.runtime.models.rows import hold_for
from edgespec.runtime.models.static_model import StaticModel
from edgespec.runtime.providers.placement import Placement
from edgespec.runtime.providers.providers import DYNAMIC, provider
from edgespec.runtime.providers.session import in_main_memory

log = logging.getLogger(__name__)


def with_profiles(manifest: Manifest, profiles: Mapping[str, str]) -> Manifest:
    """The manifest with the limits of the graphs that ``profiles`` names by model.

    Raises:
        BundleError: a model has no such profile.
    """
    specs = {name: profile_spec(spec, profiles[name], name) for name, spec in manifest.models.items()}
    return dataclasses.replace(manifest, models=specs)


def profile_spec(spec: ModelSpec, profile: str, name: str) -> ModelSpec:
    """The model ``name`` with what is true of the graphs of this profile."""
    if profile == DYNAMIC:
        return spec
    variant = (spec.variants or {}).get(profile)
    if variant is None:
        return static_spec(spec, profile, name)
    return dataclasses.replace(spec, graph=variant.graph, kv_dtype=variant.kv_dtype, pass_ms=None, pads_attention=False)


def static_spec(spec: ModelSpec, profile: str, name: str) -> ModelSpec:
    """The model ``name`` with the limits of this profile: its capacity, and the widest pass that has logits for every row."""
    found = (spec.profiles or {}).get(profile)
    if found is None:
        raise BundleError(
            f"the bundle has no {profile} profile of its {name}; export it with --profile {profile}, or run its usual graph with "
            f"--profile {name}={DYNAMIC}"
        )
    widest = max(graph.width for graph in found.graphs if graph.rows == graph.width)
    return dataclasses.replace(spec, capacity=found.capacity, max_width=widest, pass_ms=None, kv_dtype=found.kv_dtype)


def open_model(
    folder: Path,
    spec: ModelSpec,
    place: Placement,
    *,
    capacity: int,
    alone: bool = True,
    chunk: int = PREFILL_WIDTH,
    inside: ModelSpec | None = None,
) -> Model:
    """Load a model of a bundle; ``spec`` is that of :func:`with_profiles`. Graphs of fixed shapes have their own capacity and chunk.
    ``inside`` is the head whose first step the graph has in it."""
    caution = provider(place.providers[0].name).caution
    if caution and place.profile == DYNAMIC:
        log.warning("%s: %s", folder / spec.graph, caution)
    variant = (spec.variants or {}).get(place.profile)
    if variant is not None and variant.take is not None:
        device = DeviceModel(folder, spec, variant, place, capacity=capacity, alone=alone, chunk=chunk)
        return cast("Model", device)  # The same verbs with the same meaning, which is all that anybody asks of a model.
    if place.profile not in (spec.profiles or {}):
        how: dict[str, Any] = {"capacity": capacity, "threads": place.threads, "providers": place.providers}
        how |= {"alone": alone, "strict": place.strict, "chunk": chunk}
        how["hold"] = hold_for(spec) if in_main_memory(place.providers) else None
        return Model(folder / spec.graph, spec, **how) if inside is None else FusedModel(folder / spec.graph, spec, inside, **how)
    assert spec.profiles is not None
    return cast("Model", StaticModel(folder, spec, spec.profiles[place.profile], place, alone=alone))
