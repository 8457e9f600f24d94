"""The export's proof: the bundle's graph, run as users run it, against the original model in torch.

Held text goes through prefill in one go; three samples also go through prefill, a verification pass on the past of which
a part is rejected, and then on from the rollback. What differs is then either quantisation, which has a limit per
weight type, or a mistake, which is far above it. Part of the text is written by the exported model itself: its own
words are what most of its tokens will stand behind.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edgespec.errors import ExportError
from edgespec.export.checkpoint import Checkpoint
from edgespec.export.corpus import HELD
from edgespec.export.reference import Reference
from edgespec.manifest import Fidelity, ModelSpec
from edgespec.runtime.model import Model
from edgespec.runtime.session import DEFAULT_PROVIDERS, default_threads

SAMPLES = HELD[:3]  # these are also rolled back
ROWS_PER_SAMPLE = 60
MAX_ROWS, MIN_ROWS, ROWS_TIMES_PARAMETERS = 96, 48, 30 * 10**9  # of one text
ROWS_AT_ONCE = 32  # compared at a time: a row of logits is large, and several copies are made
WRITTEN, WRITTEN_TOKENS = 2, 48  # texts that the model goes on writing, and how far


@dataclasses.dataclass(frozen=True)
class Limits:
    """Largest mean KL divergence in nats, and largest rms error of the logits over their standard deviation."""

    kl: float
    relative_rms: float


# Measured on SmolLM2-135M (docs/quantisation.md); a transposed, swapped or missing tensor gives a KL of several nats. A model
# with random weights has nearly equal probabilities, hence no KL to speak of: there the second limit is the one that counts.
LIMITS = {
    "fp32": Limits(1e-4, 2e-3),
    "int8": Limits(0.05, 0.15),
    "keep": Limits(0.05, 0.15),
    "int4": Limits(0.8, 0.6),
    "mixed": Limits(0.8, 0.6),
}


def check(graph: Path, spec: ModelSpec, checkpoint: Checkpoint, config: Any, texts: Sequence[list[int]], parameters: int = 0) -> Fidelity:
    """Measure a model of the bundle.

    Args:
        graph: the ONNX file, its weights beside it.
        spec: the model's entry in the manifest.
        checkpoint: where the original's weights are.
        config: of the original model; a shallow one for an early-exit draft.
        texts: token sequences of at least four tokens each, the samples first.
        parameters: of the original; a large one is given less text, since it runs in torch.
    """
    model = Model(graph, spec, capacity=min(spec.capacity, 256), threads=default_threads(), providers=DEFAULT_PROVIDERS)
    rows = min(MAX_ROWS, max(MIN_ROWS, ROWS_TIMES_PARAMETERS // max(1, parameters)), model.capacity)
    held = [text[:rows] for text in texts]
    plans = [_Plan.of(text[:ROWS_PER_SAMPLE], spec.vocab_size) for text in held[: len(SAMPLES)]]
    held += [_go_on(model, text, seed) for seed, text in enumerate(held[-WRITTEN:])]
    sequences = [row for plan in plans for row in (plan.ids, plan.other)] + held
    reference = Reference(checkpoint, config, sequences)
    parts = []
    for index, plan in enumerate(plans):
        parts.append(compare(plan.wanted(reference.logits(2 * index), reference.logits(2 * index + 1)), plan.run(model)))
    for index, text in enumerate(held, 2 * len(plans)):
        parts.append(compare(reference.logits(index), _prefill(model, text), np.array(text[1:])))
    return _mean(parts)


def _mean(parts: list[Fidelity]) -> Fidelity:
    """Over rows; perplexities are means of logarithms."""
    rows = sum(part.rows for part in parts)
    kl, top1, rms = (sum(getattr(part, name) * part.rows for part in parts) / rows for name in ("kl", "top1", "relative_rms"))
    predicted = [part for part in parts if part.perplexity and part.original_perplexity]
    tokens = sum(part.rows - 1 for part in predicted)
    if not tokens:
        return Fidelity(kl, top1, rms, rows)
    ours, original = (
        math.exp(sum(math.log(getattr(part, name)) * (part.rows - 1) for part in predicted) / tokens)
        for name in ("perplexity", "original_perplexity")
    )
    return Fidelity(kl, top1, rms, rows, ours, original)


def _chunks(model: Model, count: int) -> Iterator[slice]:
    for start in range(0, count, model.max_pass):
        yield slice(start, min(start + model.max_pass, count))


def _prefill(model: Model, ids: list[int]) -> np.ndarray:
    """Logits ``[n, V]`` of a whole text."""
    model.keep(0)
    return np.concatenate([model.run(ids[part], range(len(ids[part]))).copy() for part in _chunks(model, len(ids))])


def _go_on(model: Model, text: list[int], seed: int) -> list[int]:
    """The first half of a text, as far as there is room, and what the model writes after it, sampled at temperature 1."""
    rng = np.random.default_rng(seed)
    ids = text[: max(2, min(len(text) // 2, model.capacity - WRITTEN_TOKENS - 1))]
    logits = _prefill(model, ids)[-1]
    for _ in range(min(WRITTEN_TOKENS, model.capacity - len(ids) - 1)):
        weights = np.exp(logits.astype(np.float64) - logits.max())
        ids = [*ids, int(rng.choice(len(weights), p=weights / weights.sum()))]
        logits = model.run(ids[-1:], [0])[0]
    return ids


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


def compare(wanted: np.ndarray, found: np.ndarray, following: np.ndarray | None = None) -> Fidelity:
    """Both ``[rows, V]``; ``following`` int ``[rows - 1]`` are the tokens that come next, for the perplexities."""
    kl, error, spread, losses = 0.0, 0.0, 0.0, np.zeros(2)
    for start in range(0, len(wanted), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        p, q = (torch.log_softmax(torch.from_numpy(rows[part]), -1) for rows in (wanted, found))
        kl += float((p.exp() * (p - q)).sum(dtype=torch.float64))
        difference = found[part] - wanted[part]
        difference -= difference.mean(-1, keepdims=True)  # a shift of all logits changes nothing
        error += float(np.square(difference).mean(-1, dtype=np.float64).sum())
        spread += float(wanted[part].std(-1, dtype=np.float64).sum())
        if following is not None:
            index = torch.from_numpy(following[part])[:, None]
            losses -= [float(rows[: len(index)].gather(1, index).double().sum()) for rows in (q, p)]
    rows = len(wanted)
    perplexities = [math.exp(min(300.0, loss / len(following))) for loss in losses] if following is not None and len(following) else []
    top1 = float((wanted.argmax(-1) == found.argmax(-1)).mean())
    return Fidelity(max(0.0, kl / rows), top1, math.sqrt(error / rows) / (spread / rows), rows, *perplexities)


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
