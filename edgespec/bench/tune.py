"""What pays on this machine: costs, acceptance by drafter and position, and from these the best drafter and draft length.

Each drafter answers every question twice. With a fixed length, so that every position is seen as often as it can be: that gives the
table and the speed that each length would have. And as it runs by itself, which measures what the controller makes of it and
teaches it; what it learnt is kept for later engines.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from edgespec.bench.prompts import Question
from edgespec.errors import CapacityError, UsageError

if TYPE_CHECKING:
    from edgespec.runtime import Engine, GenerationResult

LONGEST = 8  # tokens of the drafts that are tried


@dataclasses.dataclass(frozen=True)
class DrafterTuning:
    """One drafter.

    Attributes:
        step_ms: milliseconds of a drafted token.
        proposes: share of the rounds in which it has a proposal.
        by_position: probability that the token at each position is accepted, given that those before it were.
        speedups: expected speed over plain decoding by draft length, from 0.
        measured: measured speed over plain decoding when lengths are chosen automatically.
    """

    name: str
    step_ms: float
    proposes: float
    by_position: tuple[float, ...]
    speedups: tuple[float, ...]
    measured: float

    @property
    def best_length(self) -> int:
        return max(range(len(self.speedups)), key=self.speedups.__getitem__)


@dataclasses.dataclass(frozen=True)
class Tuning:
    """What was found on a machine.

    Attributes:
        pass_ms: milliseconds of a target pass by width.
        quiet: whether the machine did nothing else while costs were measured; otherwise they are rough.
        auto: measured speed of the default drafters over plain decoding in passes of one token.
        questions: how many were answered; ``skipped`` are those that do not fit, and why.
    """

    pass_ms: dict[int, float]
    quiet: bool
    drafters: tuple[DrafterTuning, ...]
    auto: float
    questions: int
    skipped: tuple[str, ...]

    @property
    def best(self) -> DrafterTuning | None:
        """The drafter whose best length has the highest expected speed, None if none is faster than plain decoding."""
        gaining = [found for found in self.drafters if max(found.speedups) > 1 and found.best_length]
        return max(gaining, key=lambda found: max(found.speedups), default=None)

    def as_dict(self) -> dict[str, Any]:
        best = self.best
        return {
            **dataclasses.asdict(self),
            "pass_ms": {str(width): ms for width, ms in self.pass_ms.items()},
            "drafters": [{**dataclasses.asdict(found), "best_length": found.best_length} for found in self.drafters],
            "choice": {"drafter": best.name, "draft_length": best.best_length, "speedup": max(best.speedups)} if best else None,
        }


def runs_of(engine: Engine, questions: Sequence[Question]) -> int:
    """How many generations :func:`tune` makes."""
    return len(questions) * (2 + 2 * len(drafters_of(engine)))


def drafters_of(engine: Engine) -> tuple[str, ...]:
    """The drafters whose draft length can be chosen; a tree finds its own number of nodes."""
    from edgespec.runtime import drafters

    return tuple(name for name in engine.drafters if name not in ("auto", "none") and not drafters.kind_of(name).sizes_itself)


def tune(
    engine: Engine, questions: Iterable[Question], *, max_new_tokens: int = 96, on_run: Callable[[int], None] = lambda _: None
) -> Tuning:
    """Measure costs anew, then answer the questions, and keep what was learnt.

    Raises:
        UsageError: the bundle has no drafter, or no question fits.
    """
    names = drafters_of(engine)
    if not names:
        raise UsageError("this bundle has no drafter whose length could be chosen")
    quiet = engine.remeasure()
    longest = min(LONGEST, engine.manifest.target.max_width - 1)
    arms: dict[str, dict[str, Any]] = {"plain": {"drafter": "none", "exactness": "fast"}, "auto": {}}
    arms |= {f"{name}, fixed": {"drafter": name, "draft_length": longest} for name in names}
    arms |= {name: {"drafter": name} for name in names}
    results: dict[str, list[GenerationResult]] = {arm: [] for arm in arms}
    skipped = []
    for question in questions:
        try:
            for arm, options in arms.items():
                results[arm].append(engine.generate(question.text, max_new_tokens=max_new_tokens, **options))
                on_run(1)
        except CapacityError as error:
            skipped.append(f"{question.text[:40]!r}: {error}")
    if not results["plain"]:
        raise UsageError(f"no question could be answered; {skipped[0]}")
    engine.keep_learnt()
    plain = _speed(results["plain"])
    drafters = tuple(_drafter(engine, name, results[f"{name}, fixed"], longest, _speed(results[name]) / plain) for name in names)
    return Tuning(engine.cost_curve, quiet, drafters, _speed(results["auto"]) / plain, len(results["plain"]), tuple(skipped))


def _speed(results: Sequence[GenerationResult]) -> float:
    """Tokens per second after the first, all questions together."""
    return sum(result.stats.new_tokens - 1 for result in results) / max(sum(result.stats.decode_s for result in results), 1e-9)


def _drafter(engine: Engine, name: str, results: Sequence[GenerationResult], longest: int, measured: float) -> DrafterTuning:
    drafted, accepted, rounds = Counter[int](), Counter[int](), 0
    for result in results:
        drafted.update(result.stats.drafted_by_drafter.get(name, {}))
        accepted.update(result.stats.accepted_by_drafter.get(name, {}))
        rounds += result.stats.target_passes
    proposes = drafted[1] / rounds if rounds else 0.0
    # Near the end of a text drafts are shorter: a position counts where it was drafted at all.
    tried = {position: min(drafted[position], accepted[position - 1] if position > 1 else drafted[1]) for position in range(1, longest + 1)}
    by_position = tuple(accepted[position] / tried[position] if tried[position] else 0.0 for position in tried)
    step = engine.draft_cost.get(name, 0.0)
    base = engine.cost_curve[1]
    passes = [engine.exact_pass_ms(1 + length) / base for length in range(longest + 1)]
    return DrafterTuning(name, step, proposes, by_position, expected_speedups(passes, step / base, proposes, by_position), measured)


def expected_speedups(passes: Sequence[float], step: float, proposes: float, by_position: Sequence[float]) -> tuple[float, ...]:
    """Speed over plain decoding for draft lengths from 0.

    Args:
        passes: cost of a pass of 1, 2, ... tokens, in passes of plain decoding.
        step: cost of a drafted token, likewise.
        proposes: share of the rounds in which the drafter has a proposal; in the others there is a pass of one token.
        by_position: acceptance of each position, given that the tokens before it were accepted.
    """
    found = [1 / passes[0]]
    right = tokens = 1.0
    for length, chance in enumerate(by_position, 1):
        right *= chance
        tokens += right
        cost = proposes * (passes[length] + length * step) + (1 - proposes) * passes[0]
        found.append((proposes * tokens + 1 - proposes) / cost)
    return tuple(found)
