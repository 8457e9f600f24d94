"""Text and hidden states to try drafts on, and when a head is no longer what it was."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edgespec.errors import ExportError
from edgespec.export.recipe import Scheme
from edgespec.manifest import ModelSpec
from edgespec.runtime.cores import default_threads
from edgespec.runtime.models.model import Model
from edgespec.runtime.providers.session import DEFAULT_PROVIDERS

SAMPLES = 3
PROMPT, WRITTEN = 24, 40  # tokens of a sample that are held text, and tokens that the target adds
# Share of rows in which the exported head must still hold the same token likeliest. A transposed or missing tensor leaves next to none.
LEAST_SAME = {None: 0.98, 8: 0.9, 4: 0.5}


@dataclasses.dataclass(frozen=True)
class Sample:
    """Text of which a part is the target's own, with hidden states.

    Attributes:
        tokens: n ids.
        features: float32 [n, F].
        written: the target wrote the tokens from this position on, taking the most likely one.
    """

    tokens: list[int]
    features: np.ndarray
    written: int


def write_samples(graph: Path, spec: ModelSpec, texts: list[list[int]], vocabulary: int) -> list[Sample]:
    """For each text its first tokens and what the target writes after them."""
    capacity = min(spec.capacity, PROMPT + WRITTEN)
    model = Model(graph, spec, capacity=capacity, threads=default_threads(), providers=DEFAULT_PROVIDERS)
    found = []
    for text in texts:
        model.keep(0)
        tokens = text[: max(1, min(PROMPT, capacity // 2))]
        given = len(tokens)
        logits = model.run(tokens, [given - 1])
        while model.length < capacity:
            tokens = [*tokens, int(logits[0, :vocabulary].argmax())]
            logits = model.run(tokens[-1:], [0])
        found.append(Sample(tokens, model.features.copy(), given))
    return found


def draft_share_right(graph: Path, spec: ModelSpec, samples: list[Sample]) -> float:
    """:func:`share_right` of a draft model that scores the target's own tokens, as far as it has room for them."""
    samples = [dataclasses.replace(sample, tokens=sample.tokens[: spec.capacity]) for sample in samples]
    capacity = max(len(sample.tokens) for sample in samples)
    model = Model(graph, spec, capacity=capacity, threads=default_threads(), providers=DEFAULT_PROVIDERS)
    guesses = []
    for sample in samples:
        model.keep(0)
        guesses.append(model.run(sample.tokens, range(len(sample.tokens))).argmax(-1))
    return share_right(samples, guesses, 1)


def share_right(samples: list[Sample], guesses: Sequence[np.ndarray], ahead: int) -> float:
    """How often ``guesses`` [rows] of a sample are what the target wrote, where row j guesses the token j + ``ahead``."""
    hits, cases = 0, 0
    for sample, found in zip(samples, guesses, strict=True):
        rows = range(max(sample.written - ahead, 0), len(sample.tokens) - ahead)
        hits += sum(int(found[row]) == sample.tokens[row + ahead] for row in rows)
        cases += len(rows)
    return round(hits / max(cases, 1), 4)


def require_same_tokens(name: str, found: np.ndarray, wanted: np.ndarray, scheme: Scheme | None) -> None:
    """Compare ranked tokens [n, heads, ranks] of the exported heads with the originals' likeliest [n, heads]. The token counts as
    the same within the first ranks, since near-ties fall either way.

    Raises:
        ExportError: too few are the same.
    """
    same = float((found[:, :, :3] == wanted[:, :, None]).any(-1).mean())
    least = LEAST_SAME[scheme.bits if scheme else None]
    if same < least:
        share = f"{1 - same:.0%} of the rows, more than {1 - least:.0%}"
        raise ExportError(f"{name}: holds another token likeliest than the original in {share}; choose more bits")
