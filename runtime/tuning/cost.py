"""What a pass costs on this machine, by its width. The number of drafted tokens is chosen from it.

It is measured once (:func:`measure`) and corrected by what real rounds take (:class:`RunningCosts`): attention costs more as the text
grows, and the machine may be warm or busy.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from edgespec.runtime.models.fused import FusedModel
from edgespec.runtime.models.model import Model
from edgespec.runtime.models.row_heads import RowHeads
from edgespec.runtime.models.rows import Floats

LOOK_UP_MS = 0.01  # a token drafted without a model, until it is known better
LENGTH = 128  # valid cache rows during the measurement
REPEATS = 6
WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16)  # costs between them are interpolated
RECENT = 31  # passes whose median counts; of one width half as many
LEAST = 5  # fewer say nothing
QUIET = 1.3  # a typical run over the second fastest, on a machine that does nothing else


@dataclasses.dataclass(frozen=True)
class Costs:
    """Milliseconds of a target pass by width and of one draft step by drafter. ``quiet`` is false when the runs differed
    so much that the machine must have been busy. ``first_ms`` is what the first step of a head adds to a pass of the target, where it
    is made there."""

    target_ms: dict[int, float]
    draft_ms: dict[str, float]
    quiet: bool
    first_ms: dict[str, float] = dataclasses.field(default_factory=dict)

    def of_first_step(self, drafter: str) -> float:
        """The first step of a round."""
        return self.first_ms.get(drafter, self.draft_ms[drafter])

    def of_width(self, width: int) -> float:
        """A pass of ``width`` tokens: straight lines between the measured widths, and in proportion beyond them."""
        return interpolated(sorted(self.target_ms.items()), width)


def interpolated(curve: Sequence[tuple[int, float]], width: int) -> float:
    """The value at ``width`` of a curve of ascending points."""
    for (low, low_ms), (high, high_ms) in itertools.pairwise(curve):
        if low <= width <= high:
            return low_ms + (high_ms - low_ms) * (width - low) / (high - low)
    return curve[0][1] if width < curve[0][0] else curve[-1][1] * width / curve[-1][0]


class RunningCosts:
    """Measured costs, corrected by the passes of real rounds.

    All passes together say how fast the machine is now; those of one width, each held against the speed at its time, say whether that
    width costs more or less than was measured. Both are medians of the last few, so single disturbances do not count, and a width that
    was last used while the machine was busy is not taken to be dear.
    """

    def __init__(self, start: Costs) -> None:
        self.start = start
        self._pace = collections.deque[float](maxlen=RECENT)
        self._speed = 1.0
        self._own: dict[int, collections.deque[float]] = {}
        self._correction: dict[int, float] = {}
        self._steps: dict[str, collections.deque[float]] = {}
        self._step: dict[str, float] = {}
        """Their medians."""
        self._of_width = functools.cache(start.of_width)
        self._first_ms = max(start.first_ms.values(), default=0.0)  # one head at most is in the target's graph

    def of_width(self, width: int) -> float:
        """Milliseconds of a target pass of ``width`` tokens."""
        return self._of_width(width) * self._speed * self._correction.get(width, 1.0)

    def of_step(self, drafter: str) -> float:
        """Milliseconds of one step of a drafter's model, taken to be slowed as passes are."""
        return self.start.draft_ms[drafter] * self._speed

    def of_first_step(self, drafter: str) -> float:
        """The same of the first step of a round."""
        return self.start.of_first_step(drafter) * self._speed

    def of_draft(self, drafter: str, tokens: int) -> float:
        """Milliseconds in which a drafter makes so many tokens. Until it has been seen to, it is taken to be slowed as passes are."""
        step = self._step.get(drafter)
        return (self.start.draft_ms.get(drafter, LOOK_UP_MS) * self._speed if step is None else step) * tokens

    def saw_pass(self, width: int, seconds: float, first_step: bool = False) -> None:
        """A target pass of ``width`` tokens took so long, with or without a head's first step in it, which is no part of its cost."""
        expected = self._of_width(width) + (self._first_ms if first_step else 0.0)
        ratio = seconds * 1000 / expected
        self._pace.append(ratio)
        if len(self._pace) < LEAST:
            return
        self._speed = statistics.median(self._pace)
        own = self._own.setdefault(width, collections.deque(maxlen=RECENT // 2))
        own.append(ratio / self._speed)
        if len(own) >= LEAST:
            self._correction[width] = statistics.median(own)

    def saw_draft(self, drafter: str, tokens: int, seconds: float) -> None:
        """A drafter took so long for so many tokens, with everything around its model's passes."""
        found = self._steps.setdefault(drafter, collections.deque(maxlen=RECENT))
        found.append(seconds * 1000 / tokens)
        if len(found) >= LEAST:
            self._step[drafter] = statistics.median(found)


def measure(target: Model, drafts: Mapping[str, Callable[[], Model | RowHeads]]) -> Costs:
    """Measure a target and the draft models and heads of ``drafts``. All their caches are empty afterwards."""
    if isinstance(target, FusedModel):
        target.detach()  # else the rows of a head would follow the target's
    widths = [width for width in WIDTHS if width <= min(target.spec.max_width, target.max_pass)]
    target_ms, quiet = measure_widths(target, widths)
    width = min(4, widths[-1])
    draft_ms = {name: measure_draft_step(model(), target, width) for name, model in drafts.items()}
    first_ms = {}
    if isinstance(target, FusedModel):
        inside = ((name, head) for name, model in drafts.items() if isinstance(head := model(), Model) and target.has_inside(head))
        first_ms = {name: measure_first_step(head, target, width) for name, head in inside}
    return Costs(target_ms, draft_ms, quiet, first_ms)


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


def measure_draft_step(draft: Model | RowHeads, target: Model, target_width: int, steps: int = 3) -> float:
    """Milliseconds of a draft step as it is in a round: several steps after a pass of the target, which has just
    emptied the caches and woken another pool of threads. Heads over rows have one step in a round."""
    if isinstance(draft, RowHeads):
        return _measure_heads(draft, target, target_width)
    steps = min(steps, draft.capacity)
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


def measure_first_step(head: Model, target: FusedModel, width: int) -> float:
    """Milliseconds that a pass of the target of ``width`` tokens takes longer for the head's first step, never less than none."""
    steps = target.attach(head)
    length = min(LENGTH, target.capacity - width)
    _fill(target, length)
    times: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(REPEATS):
        for wanted, found in times.items():
            steps.wanted = wanted
            found.append(_time_pass(target, length, width))
    target.leave_out()
    target.keep(0)
    return max(sorted(times[True])[1] - sorted(times[False])[1], 0.0)


def _measure_heads(heads: RowHeads, target: Model, target_width: int) -> float:
    length = min(LENGTH, target.capacity - target_width)
    row = np.zeros((1, heads.spec.features or 0), np.float32)
    _fill(target, length)
    times = []
    for _ in range(REPEATS):
        _time_pass(target, length, target_width)
        started = time.perf_counter()
        heads.run(row)
        times.append((time.perf_counter() - started) * 1000)
    target.keep(0)
    return sorted(times)[1]


def _fill(model: Model, length: int) -> None:
    model.keep(0)
    while model.length < length:
        count = min(length - model.length, model.max_pass)
        model.run([0] * count, [0], features=_no_features(model, count))


def _time_pass(model: Model, length: int, width: int) -> float:
    model.keep(length)
    started = time.perf_counter()
    logits = model.run([0] * width, range(width), features=_no_features(model, width))
    np.argmax(logits[0])  # what a greedy step does with it
    return (time.perf_counter() - started) * 1000


def _no_features(model: Model, count: int) -> Floats | None:
    """What a head takes for so many drafted tokens; None for other models."""
    return np.zeros((count, model.spec.hidden_states or 0), np.float32) if model.spec.features else None
