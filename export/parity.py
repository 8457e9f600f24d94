"""The export's proof: the bundle's graph, run as users run it, against the original model in torch.

Real token sequences go through prefill, a verification pass on the past of which a part is rejected, and then on from
the rollback. What differs is then either quantisation, which has a limit per weight type, or a mistake, which is far above it.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edgespec.errors import ExportError
from edgespec.export.checkpoint import Checkpoint
from edgespec.export.reference import reference_logits
from edgespec.manifest import Fidelity, ModelSpec
from edgespec.runtime.model import Model
from edgespec.runtime.session import DEFAULT_PROVIDERS, default_threads

SAMPLES = (
    "The old lighthouse keeper counted the ships each evening and wrote their names in a ledger. When the fog came in "
    "from the north he lit the second lamp, rang the bell every minute, and waited until the last one had passed the reef.",
    "def mean(values):\n    if not values:\n        raise ValueError('mean of no values')\n    total = 0.0\n"
    "    for value in values:\n        total += value\n    return total / len(values)\n\nprint(mean([1, 2, 3]))\n",
    "To make bread you need flour, water, salt and yeast. First mix the flour with the salt. Second, dissolve the yeast in "
    "warm water. Third, knead the dough for ten minutes and let it rest for an hour. Finally, bake it at 220 degrees.",
)
ROWS_PER_SAMPLE = 60


@dataclasses.dataclass(frozen=True)
class Limits:
    """Largest mean KL divergence in nats, and largest rms error of the logits over their standard deviation."""

    kl: float
    relative_rms: float


# Measured on SmolLM2-135M (docs/log.md); a transposed, swapped or missing tensor gives a KL of several nats. A model with
# random weights has nearly equal probabilities, hence no KL to speak of: there the second limit is the one that counts.
LIMITS = {"fp32": Limits(1e-4, 2e-3), "int8": Limits(0.05, 0.15), "int4": Limits(0.8, 0.6)}


def check(graph: Path, spec: ModelSpec, checkpoint: Checkpoint, config: Any, ids: list[list[int]]) -> Fidelity:
    """Measure a model of the bundle on token sequences.

    Args:
        graph: the ONNX file, its weights beside it.
        spec: the model's entry in the manifest.
        checkpoint: where the original's weights are.
        config: of the original model; a shallow one for an early-exit draft.
        ids: token sequences of at least four tokens each.
    """
    length = min(ROWS_PER_SAMPLE, spec.capacity, *(len(sequence) for sequence in ids))
    plans = [_Plan.of(sequence[:length], spec.vocab_size) for sequence in ids]
    # All sequences in one batch: the original reads its weights from disk once per call.
    batch = torch.tensor([row for plan in plans for row in (plan.ids, plan.other)])
    reference = reference_logits(checkpoint, config, batch).numpy()
    model = Model(graph, spec, capacity=min(spec.capacity, 256), threads=default_threads(), providers=DEFAULT_PROVIDERS)
    parts = [compare(plan.wanted(*reference[2 * index : 2 * index + 2]), plan.run(model)) for index, plan in enumerate(plans)]
    rows = sum(part.rows for part in parts)

    def mean(name: str) -> float:
        return float(sum(getattr(part, name) * part.rows for part in parts) / rows)

    return Fidelity(mean("kl"), mean("top1"), mean("relative_rms"), rows)


@dataclasses.dataclass(frozen=True)
class _Plan:
    """Passes over a sequence: prefill, then a verification pass whose tokens are right up to ``kept``, then the rest.

    ``other`` is the sequence with wrong tokens from ``kept`` on.
    """

    ids: list[int]
    other: list[int]
    prefill: int
    kept: int
    drafted: int

    @classmethod
    def of(cls, ids: list[int], vocab_size: int) -> _Plan:
        prefill = max(1, len(ids) * 2 // 3)
        kept, drafted = min(prefill + 3, len(ids)), min(prefill + 6, len(ids))
        other = ids[:kept] + [(token + 1) % vocab_size for token in ids[kept:]]
        return cls(ids, other, prefill, kept, drafted)

    def run(self, model: Model) -> np.ndarray:
        """Logits ``[rows, V]`` of every row of every pass of the exported model."""
        ids, kept = self.ids, self.kept
        passes = ((ids[: self.prefill], self.prefill), (self.other[self.prefill : self.drafted], kept), (ids[kept : kept + 1], kept + 1))
        model.keep(0)
        rows = []
        for tokens, keep in (*passes, (ids[kept + 1 :], len(ids))):
            if tokens:
                rows.append(model.run(tokens, range(len(tokens))).copy())
                model.keep(min(keep, model.length))
        return np.concatenate(rows)

    def wanted(self, right: np.ndarray, wrong: np.ndarray) -> np.ndarray:
        """What :meth:`run` should give, from the original's logits ``[n, V]`` of both sequences."""
        return np.concatenate([right[: self.prefill], wrong[self.prefill : self.drafted], right[self.kept :]])


def compare(wanted: np.ndarray, found: np.ndarray) -> Fidelity:
    """Both ``[rows, V]``."""
    p, q = (torch.log_softmax(torch.from_numpy(rows).double(), -1) for rows in (wanted, found))
    kl = (p.exp() * (p - q)).sum(-1).mean()
    error = (found - wanted) - (found - wanted).mean(-1, keepdims=True)  # a shift of all logits changes nothing
    return Fidelity(
        kl=max(0.0, float(kl)),
        top1=float((wanted.argmax(-1) == found.argmax(-1)).mean()),
        relative_rms=float(np.sqrt((error**2).mean()) / wanted.std(-1).mean()),
        rows=len(wanted),
    )


def require(name: str, fidelity: Fidelity, weights: str, max_kl: float | None) -> None:
    """Raise ExportError when the fidelity is outside the limits."""
    limits = LIMITS[weights]
    kl = limits.kl if max_kl is None else max_kl
    if not fidelity.kl <= kl:
        raise ExportError(
            f"{name}: differs from the original by a KL of {fidelity.kl:.4f} nats where at most {kl:g} is accepted for {weights}; "
            "choose more bits or a smaller block, or raise --max-kl"
        )
    if not fidelity.relative_rms <= limits.relative_rms:
        raise ExportError(
            f"{name}: its logits are off by {fidelity.relative_rms:.3f} of their spread, "
            f"where at most {limits.relative_rms:g} is accepted for {weights}"
        )
