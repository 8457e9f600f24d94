"""A bundle's plan without loading its models. It takes a tokenizer and ONNX Runtime's library, since the process holds these too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgespec.bundle import open_bundle
from edgespec.runtime.memory.degrade import fit, fit_with_packs
from edgespec.runtime.memory.pack_cache import are_useful
from edgespec.runtime.memory.plan import Plan, footprint
from edgespec.runtime.memory.size import parse_size
from edgespec.runtime.models.fused import as_run
from edgespec.runtime.models.kv import kv_choice
from edgespec.runtime.ort import import_onnxruntime
from edgespec.runtime.text.tokenizer import Tokenizer


def plan_bundle(
    bundle: Path,
    *,
    memory_budget: int | str | None = None,
    context: int | None = None,
    kv: str | Sequence[str] | None = None,
    pack_cache: bool = True,
) -> Plan:
    """What :func:`edgespec.load` would do with these arguments.

    Raises:
        BundleError: the bundle is missing or damaged.
        CapacityError: the budget is too small; says which one would do.
        UsageError: the budget is no size, or the bundle has less context or no such KV caches.
        RuntimeFailure: ONNX Runtime is missing, or too old for these KV caches.
    """
    budget = None if memory_budget is None else parse_size(memory_budget)
    manifest = open_bundle(bundle)
    tokenizer = Tokenizer(bundle, manifest.tokenizer, manifest.target.vocab_size)
    allowed = kv_choice(kv, manifest, import_onnxruntime().__version__)
    found = footprint(bundle, as_run(manifest, budget, allowed[0]))
    del tokenizer  # it had to be there while the process was measured
    wanted = found.widest(context, kv=allowed)
    if pack_cache and are_useful(found.weights):
        return fit_with_packs(found, wanted, budget)[0]
    return fit(found, wanted, budget)
