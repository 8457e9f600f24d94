"""What a pass costs on this machine, by its width. The number of drafted tokens is chosen from it."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from edgespec.runtime.model import Model

LENGTH = 128  # valid cache rows during the measurement
REPEATS = 6
WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16)  # costs between them are interpolated
QUIET = 1.3  # a typical run over the second fastest, on a machine that does nothing else


@dataclasses.dataclass(frozen=True)
class Costs:
    """Milliseconds of a target pass by width and of one draft step by drafter. ``quiet`` is false when the runs differed
    so much that the machine must have been busy."""

    target_ms: dict[int, float]
    draft_ms: dict[str, float]
    quiet: bool

    def of_width(self, width: int) -> float:
        """A pass of ``width`` tokens: straight lines between the measured widths, and in proportion beyond them."""
        curve = sorted(self.target_ms.items())
        for (low, low_ms), (high, high_ms) in itertools.pairwise(curve):
            if low <= width <= high:
                return low_ms + (high_ms - low_ms) * (width - low) / (high - low)
        return curve[0][1] if width < curve[0][0] else curve[-1][1] * width / curve[-1][0]


def measure(target: Model, drafts: Mapping[str, Callable[[], Model]]) -> Costs:
    """Measure a target and the draft models of ``drafts``. All their caches are empty afterwards."""
    widths = [width for width in WIDTHS if width <= min(target.spec.max_width, target.max_pass)]
    target_ms, quiet = measure_widths(target, widths)
    draft_ms = {name: measure_draft_step(model(), target, min(4, widths[-1])) for name, model in drafts.items()}
    return Costs(target_ms, draft_ms, quiet)


def measure_widths(model: Model, widths: Sequence[int]) -> tuple[dict[int, float], bool]:
    """Milliseconds of a pass by its width, with logits for every row, and whether the machine was quiet.

    Widths take turns, so that a disturbance hits all of them, and the second fastest of a few runs counts: what the
    pass costs when nothing else runs, without trusting one lucky run. Noise only ever adds, so a width is not taken to
    cost more than a wider one did.
    """
    length = min(LENGTH, model.capacity - max(widths))
    times: dict[int, list[float]] = {width: [] for width in widths}
    _fill(model, length)
    for _ in range(REPEATS):
        for width in widths:
            times[width].append(_time_pass(model, length, width))
    model.keep(0)
    costs: dict[int, float] = {}
    for width in sorted(widths, reverse=True):
        costs[width] = min([sorted(times[width])[1], *costs.values()])
    spread = float(np.median([sorted(found)[REPEATS // 2] / costs[width] for width, found in times.items()]))
    return dict(sorted(costs.items())), spread < QUIET


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
