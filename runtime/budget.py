"""A memory budget: how many rows of KV cache fit beside the weights."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from edgespec.errors import CapacityError, UsageError
from edgespec.manifest import Manifest, ModelSpec
from edgespec.runtime.rows import bytes_per_row

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}
LEAST_ROWS = 256
# Measured with ONNX Runtime 1.32 on Linux: interpreter and libraries, and prefill passes of 128 tokens.
PROCESS_BYTES = 50 * 10**6
WORKSPACE_BYTES = 45 * 10**6


def parse_size(size: int | str) -> int:
    """Bytes of 300000000, "300MB" or "1.5 GiB"."""
    if isinstance(size, int) and not isinstance(size, bool):
        amount = float(size)
    else:
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMG]?I?)B?\s*", str(size).upper())
        if not match or match[2] not in UNITS:
            raise UsageError(f"memory budget {size!r}: expected bytes, or a number with a unit such as 300MB or 1.5GiB")
        amount = float(match[1]) * UNITS[match[2]]
    if amount <= 0:
        raise UsageError(f"memory budget {size!r}: expected more than nothing")
    return int(amount)


def rows_that_fit(manifest: Manifest, models: Sequence[ModelSpec], budget: int | None) -> int:
    """KV rows for each of ``models``: as many as the target was exported for, fewer under a budget.

    Raises:
        CapacityError: the weights and a cache of a few hundred rows do not fit.
    """
    most = manifest.target.capacity
    if budget is None:
        return most
    weights = resident_bytes(manifest, models)
    per_row = sum(map(bytes_per_row, models))
    rows = min(most, (budget - weights) // per_row)
    least = min(LEAST_ROWS, most)
    if rows < least:
        needed = weights + least * per_row
        raise CapacityError(
            f"memory budget of {budget / 1e6:.0f} MB: the weights in use ({weights / 1e6:.0f} MB) and a cache of {least} tokens "
            f"need {needed / 1e6:.0f} MB; raise the budget, or export with fewer bits or without a draft"
        )
    return rows


def resident_bytes(manifest: Manifest, models: Sequence[ModelSpec]) -> int:
    """An upper estimate of what is resident besides KV caches: the process, the weights' files as far as they are mapped,
    ONNX Runtime's own packed copy of them, and a pass's workspace.

    Models share bytes of a file (an early exit does), but every session packs its own; what a smaller model packs is
    estimated by its share of the layers and its head.
    """
    sizes = {file.name: file.size for file in manifest.files}
    mapped = sum(sizes[name] for name in {name for model in models for name in (model.graph, *model.weights)})
    packed = 0.0
    for model in models:
        own = sum(sizes[name] for name in model.weights)
        head = model.vocab_size * model.hidden_size * (model.quantisation.bits / 8) * 1.2  # with scales
        packed += own if model is manifest.target else min(own, own * len(model.layers) / len(manifest.target.layers) + head)
    return PROCESS_BYTES + WORKSPACE_BYTES + mapped + int(packed)


def unused(manifest: Manifest, drafts: Iterable[str], rows: int, budget: int) -> int:
    """Bytes that weights and caches of ``rows`` rows leave of a budget."""
    models = [manifest.target, *(manifest.models[name] for name in sorted(set(drafts)))]
    return max(0, budget - resident_bytes(manifest, models) - rows * sum(map(bytes_per_row, models)))
