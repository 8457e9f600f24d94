"""The proof of a target's graph with a head in it: the target's bits are those of the target alone, and the head says what it says in
its own graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgespec.errors import ExportError
from edgespec.export import parity
from edgespec.export.parity.limits import FAULT, ROUNDED, within
from edgespec.manifest import ModelSpec
from edgespec.runtime.cores import default_threads
from edgespec.runtime.models.features import columns
from edgespec.runtime.models.fused import FusedModel
from edgespec.runtime.models.model import Model
from edgespec.runtime.providers.session import DEFAULT_PROVIDERS

CHECKED = 8  # tokens behind the prompt, as a verification pass has them


def prove_fused(folder: Path, target: ModelSpec, head: ModelSpec, tokens: Sequence[int]) -> None:
    """Compare the graph on a prompt and a pass behind it, in which the head takes what the target finds likeliest.

    Raises:
        ExportError: a number of the target is another one, or the head's logits are off.
    """
    assert head.fused is not None
    how: dict[str, Any] = {"capacity": len(tokens), "threads": default_threads(), "providers": DEFAULT_PROVIDERS}
    prompt = max(len(tokens) - min(CHECKED, target.max_width), 1)
    parts = [list(tokens[:prompt]), list(tokens[prompt:])]
    alone = Model(folder / target.graph, target, **how)
    logits = [_run(alone, part) for part in parts]
    rows, features = alone.cache_rows(0, len(tokens)), alone.features[:, columns(target, head.reads or ())].copy()
    del alone  # the two sessions take turns: each holds all of the target's weights
    own = Model(folder / head.graph, head, **how, alone=False)
    fused = FusedModel(folder / head.fused, target, head, **how)
    steps = fused.attach(own)
    steps.begin(parts[0])
    found, said = [], []
    for part in parts:
        found.append(_run(fused, part))
        said.append(steps.logits[: len(part)].copy())
    same = all(map(np.array_equal, (*logits, *rows), (*found, *fused.cache_rows(0, len(tokens)))))
    taken = own.taken.tolist()
    if not same or taken != [*tokens[1:prompt], *np.concatenate([logits[0][-1:], logits[1]]).argmax(axis=1).tolist()]:
        raise ExportError(f"{head.architecture}: the target computes something else with the head in its graph; {FAULT}")
    own.keep(0)
    meant = [_run(own, taken[:prompt], features[:prompt]), _run(own, taken[prompt:], features[prompt:])]
    distance = parity.mean([parity.compare(wanted, logits) for wanted, logits in zip(meant, said, strict=True)])
    if not within(distance, ROUNDED):
        raise ExportError(
            f"{head.architecture}: its logits in the target's graph are off from its own graph by {distance.relative_rms:.2g} of their "
            f"spread (at most {ROUNDED.relative_rms:g}); {FAULT}"
        )


def _run(model: Model, tokens: list[int], features: np.ndarray | None = None) -> np.ndarray:
    """Logits of every row."""
    logits: np.ndarray = model.run(tokens, range(len(tokens)), features=features).copy()
    return logits
