"""What is asked of a bundle, and its plan without loading its models. ONNX Runtime's library has to be in memory for both, and the
tokenizer for a plan and wherever there is a budget, since the process holds these too."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from edgespec.bundle import open_bundle
from edgespec.manifest import Manifest
from edgespec.runtime.memory.degrade import fit, fit_with_packs
from edgespec.runtime.memory.pack_cache import are_useful
from edgespec.runtime.memory.plan import Footprint, Plan, Settings, footprint
from edgespec.runtime.memory.size import parse_size
from edgespec.runtime.models.fused import as_run, without_fused
from edgespec.runtime.models.kv import kv_choice
from edgespec.runtime.ort import import_onnxruntime
from edgespec.runtime.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What is to be had if the budget allows it.

    Attributes:
        manifest: the bundle's, with the graphs that are used.
        footprint: what these would take in this process.
        settings: the widest.
        budget: bytes; the one that was named, else what a container leaves if that may not do, else None.
    """

    manifest: Manifest
    footprint: Footprint
    settings: Settings
    budget: int | None


def what_is_wanted(
    bundle: Path, manifest: Manifest, budget: int | None, kv: tuple[str, ...], context: int | None, draft_window: int | None = None
) -> Wanted:
    """See :class:`Wanted`; the arguments are those of :func:`edgespec.load`.

    Raises:
        BundleError: a graph cannot be read.
        UsageError: the bundle has less context, or no draft model that a window is for.
    """
    manifest = as_run(manifest, budget, kv[0])
    found = footprint(bundle, manifest)
    settings = found.widest(context, draft_window, kv)
    if budget is None and (budget := found.container_budget(settings)) is not None:
        manifest = without_fused(manifest)
        found = footprint(bundle, manifest)
    return Wanted(manifest, found, settings, budget)


def plan_bundle(
    bundle: Path,
    *,
    memory_budget: int | str | None = None,
    context: int | None = None,
    draft_window: int | None = None,
    kv: str | Sequence[str] | None = None,
    pack_cache: bool = True,
) -> Plan:
    """What :func:`edgespec.load` would do with these arguments.

    Raises:
        BundleError: the bundle is missing or damaged.
        CapacityError: the budget is too small; says which one would do.
        UsageError: the budget is no size, or the bundle has less context, no such KV caches, or no draft model that a window is for.
        RuntimeFailure: ONNX Runtime is missing, or too old for these KV caches.
    """
    budget = None if memory_budget is None else parse_size(memory_budget)
    manifest = open_bundle(bundle)
    tokenizer = Tokenizer(bundle, manifest.tokenizer, manifest.target.vocab_size)
    allowed = kv_choice(kv, manifest, import_onnxruntime().__version__)
    wanted = what_is_wanted(bundle, manifest, budget, allowed, context, draft_window)
    del tokenizer  # it had to be there while the process was measured
    if pack_cache and are_useful(wanted.footprint.weights):
        return fit_with_packs(wanted.footprint, wanted.settings, wanted.budget)[0]
    return fit(wanted.footprint, wanted.settings, wanted.budget)
