"""Compiling the graphs of fixed shapes for an NPU ahead of time: on the device it takes minutes and a multiple of the memory.

The provider's compiler makes a *context binary*, and beside it a graph that names the inputs and outputs. The result is a bundle
of its own, for this provider, its version and the chip that its options name.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path

from edgespec.bundle import describe_file, open_bundle
from edgespec.errors import UsageError
from edgespec.manifest import MANIFEST_NAME, Compiled, Manifest, ModelSpec, StaticProfile, parse_manifest
from edgespec.runtime.models.static_model import SHARE_CONTEXTS
from edgespec.runtime.providers.placement import Placement, Placements
from edgespec.runtime.providers.providers import NPU
from edgespec.runtime.providers.session import make_session
from edgespec.staging import check_output, staged


def compile_bundle(
    bundle: Path, output: Path, provider: str, options: Mapping[str, Mapping[str, str]], *, shared: bool = True, force: bool = False
) -> Manifest:
    """Write a bundle whose graphs of fixed shapes are compiled.

    Args:
        bundle: one with the profile that ``provider`` runs.
        output: folder to make.
        provider: such as "qnn".
        options: provider options by provider; they say for which chip.
        shared: one context binary for all graphs of a model, so that they share their weights.
        force: replace a bundle at ``output``.

    Raises:
        UsageError: the provider runs no graphs that can be compiled.
        BundleError: the bundle has none of its profile, or they are compiled already.
        RuntimeFailure: the compiler refuses a graph.
        ExportError: the output is taken or cannot be written.
    """
    check_output(output, force)
    manifest = open_bundle(bundle)
    place = Placements.of(provider, 1, options).of_model("target")
    if place.profile != NPU:
        raise UsageError(f"{provider} runs the graph for passes of any width, which is not compiled ahead of time; name another provider")
    profiles = {name: (spec.profiles or {}).get(place.profile) for name, spec in manifest.models.items()}
    found = {name: profile for name, profile in profiles.items() if profile is not None}
    if not found:
        raise UsageError(f"{bundle}: has no {place.profile} profile to compile; export it with --profile {place.profile}")
    if any(profile.compiled for profile in found.values()):
        raise UsageError(f"{bundle}: is compiled already; compile the bundle that it was made from")
    with staged(output, force) as folder:
        models = dict(manifest.models)
        for name, profile in found.items():
            models[name] = _compile(bundle, folder, models[name], profile, place, shared)
        gone = {graph.graph for profile in found.values() for graph in profile.graphs}
        for entry in manifest.files:
            if entry.name not in gone:
                shutil.copyfile(bundle / entry.name, folder / entry.name)
        files = tuple(describe_file(path) for path in sorted(folder.iterdir()))
        compiled = parse_manifest(dataclasses.replace(manifest, models=models, files=files).to_json())
        (folder / MANIFEST_NAME).write_text(compiled.to_json(), encoding="utf-8")
    return compiled


def _compile(bundle: Path, folder: Path, spec: ModelSpec, profile: StaticProfile, place: Placement, shared: bool) -> ModelSpec:
    before = set(folder.iterdir())
    graphs, sessions = [], []
    for graph in profile.graphs:
        name = f"{Path(graph.graph).stem}.compiled.onnx"
        entries = {"ep.context_enable": "1", "ep.context_embed_mode": "0", "ep.context_file_path": str(folder / name)}
        if shared:
            entries[SHARE_CONTEXTS] = "1"
            if graph is profile.graphs[-1]:
                entries["ep.stop_share_ep_contexts"] = "1"
        sessions.append(make_session(bundle / graph.graph, 1, place.providers, entries=entries))  # kept until all are compiled
        graphs.append(dataclasses.replace(graph, graph=name))
    contexts = sorted(path.name for path in set(folder.iterdir()) - before if path.name not in {graph.graph for graph in graphs})
    compiled = Compiled(place.providers[0].name, tuple(contexts), shared)
    profiles = {**(spec.profiles or {}), place.profile: dataclasses.replace(profile, graphs=tuple(graphs), compiled=compiled)}
    return dataclasses.replace(spec, profiles=profiles)
