"""What a pass costs on this machine, by its width. The number of drafted tokens is chosen from it."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from edgespec.runtime.model import Model

LENGTH = 128  # valid cache rows during the measurement
REPEATS = 6


def measure_widths(model: Model, widths: Sequence[int]) -> dict[int, float]:
    """Milliseconds of a pass by its width, with logits for every row. The model's cache is empty afterwards.

    Widths take turns, so that a disturbance hits all of them, and the second fastest of a few runs counts: what the
    pass costs when nothing else runs, without trusting one lucky run.
    """
    length = min(LENGTH, model.capacity - max(widths))
    times: dict[int, list[float]] = {width: [] for width in widths}
    _fill(model, length)
    for _ in range(REPEATS):
        for width in widths:
            times[width].append(_time_pass(model, length, width))
    model.keep(0)
    return {width: sorted(found)[1] for width, found in times.items()}


def measure_draft_step(draft: Model, target: Model, target_width: int, steps: int = 3) -> float:
    """Milliseconds of a draft step as it is in a round: several steps after a pass of the target, which has just
    emptied the caches and woken another pool of threads."""
    length = min(LENGTH, draft.capacity - steps, target.capacity - target_width)
    _fill(draft, length)
    _fill(target, length)
    times = []
    for _ in range(REPEATS):
        _time_pass(target, length, target_width)
        draft.keep(length)
        times.append(sum(_time_pass(draft, length + step, 1) for step in range(steps)) / steps)
    draft.keep(0)
    target.keep(0)
    return sorted(times)[1]


def _fill(model: Model, length: int) -> None:
    model.keep(0)
    while model.length < length:
        model.run([0] * min(length - model.length, model.max_pass), [0])


def _time_pass(model: Model, length: int, width: int) -> float:
    model.keep(length)
    started = time.perf_counter()
    logits = model.run([0] * width, range(width))
    np.argmax(logits[0])  # what a greedy step does with it
    return (time.perf_counter() - started) * 1000
