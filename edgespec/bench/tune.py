"""What pays on this machine: costs, acceptance by drafter and position, and from these the best drafter and draft length.

Each drafter answers every question as it runs by itself, which measures what the controller makes of it and teaches it; what it
learnt is kept for later engines. One that leaves its length to others also answers with a fixed one, so that every position is seen as
often as it can be: that gives the speed that each length would have. A tree has no length to choose, it finds its own nodes.
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
        by_position: probability that the token at each position is accepted, given that those before it were; of siblings in a tree
            each counts.
        speedups: expected speed over plain decoding by draft length, from 0; empty for a drafter that sizes its drafts itself.
        measured: measured speed over plain decoding when lengths are chosen automatically.
    """

    name: str
    step_ms: float
    proposes: float
    by_position: tuple[float, ...]
    speedups: tuple[float, ...]
    measured: float

    @property
    def best_length(self) -> int | None:
        """The draft length of the highest expected speed; None where there is none to choose."""
        return max(range(len(self.speedups)), key=self.speedups.__getitem__) if self.speedups else None

    @property
    def speedup(self) -> float:
        """Expected at the best length; measured where there is none to choose."""
        return max(self.speedups) if self.speedups else self.measured


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
        """The fastest drafter, each at its best length; None if none is faster than plain decoding."""
        gaining = [found for found in self.drafters if found.speedup > 1 and found.best_length != 0]
        return max(gaining, key=lambda found: found.speedup, default=None)

    def as_dict(self) -> dict[str, Any]:
        best = self.best
        return {
            **dataclasses.asdict(self),
            "pass_ms": {str(width): ms for width, ms in self.pass_ms.items()},
            "drafters": [{**dataclasses.asdict(found), "best_length": found.best_length} for found in self.drafters],
            "choice": {"drafter": best.name, "draft_length": best.best_length, "speedup": best.speedup} if best else None,
        }


def runs_of(engine: Engine, questions: Sequence[Question]) -> int:
    """How many generations :func:`tune` makes."""
    return len(questions) * (2 + len(drafters_of(engine)) + len(of_a_length(engine)))


def drafters_of(engine: Engine) -> tuple[str, ...]:
    """Every drafter that the bundle can run."""
    return tuple(name for name in engine.drafters if name not in ("auto", "none"))


def of_a_length(engine: Engine) -> tuple[str, ...]:
    """Those whose draft length can be chosen; a tree finds its own number of nodes."""
    from edgespec.runtime import drafters

    return tuple(name for name in drafters_of(engine) if not drafters.kind_of(name).sizes_itself)


def tune(
    engine: Engine, questions: Iterable[Question], *, max_new_tokens: int = 96, on_run: Callable[[int], None] = lambda _: None
) -> Tuning:
    """Measure costs anew, then answer the questions, and keep what was learnt.

    Raises:
        UsageError: no question fits.
    """
    names, sized = drafters_of(engine), of_a_length(engine)
    quiet = engine.remeasure()
    longest = min(LONGEST, engine.manifest.target.max_width - 1)
    arms: dict[str, dict[str, Any]] = {"plain": {"drafter": "none", "exactness": "fast"}, "auto": {}}
    arms |= {f"{name}, fixed": {"drafter": name, "draft_length": longest} for name in sized}
    arms |= {name: {"drafter": name} for name in names}
    results: dict[str, list[GenerationResult]] = {arm: [] for arm in arms}
    skipped = []
    for question in questions:
        found = {}
        try:
            for arm, options in arms.items():
                found[arm] = engine.generate(question.text, max_new_tokens=max_new_tokens, **options)
                on_run(1)
        except CapacityError as error:
            skipped.append(f"{question.text[:40]!r}: {error}")
            continue
        for arm, result in found.items():
            results[arm].append(result)
    if not results["plain"]:
        raise UsageError(f"no question could be answered; {skipped[0]}")
    plain = _speed(results["plain"])
    if not plain:
        raise UsageError("every answer is a single token, which says nothing of speed; give other --prompts")
    engine.keep_learnt()
    drafters = tuple(_drafter(engine, name, results.get(f"{name}, fixed"), results[name], longest, plain) for name in names)
    return Tuning(engine.cost_curve, quiet, drafters, _speed(results["auto"]) / plain, len(results["plain"]), tuple(skipped))


def _speed(results: Sequence[GenerationResult]) -> float:
    """Tokens per second after the first, all questions together."""
    return sum(result.stats.new_tokens - 1 for result in results) / max(sum(result.stats.decode_s for result in results), 1e-9)


def _drafter(
    engine: Engine, name: str, fixed: Sequence[GenerationResult] | None, free: Sequence[GenerationResult], longest: int, plain: float
) -> DrafterTuning:
    """What is found of a drafter from its results with the ``longest`` fixed length, if it takes one, and without."""
    step, measured = engine.draft_cost.get(name, 0.0), _speed(free) / plain
    proposes, by_position = _counted(name, free if fixed is None else fixed)
    if fixed is None:
        return DrafterTuning(name, step, proposes, by_position, (), measured)
    by_position = (*by_position, *[0.0] * (longest - len(by_position)))  # never drafted
    base = engine.cost_curve[1]
    passes = [engine.exact_pass_ms(1 + length) / base for length in range(longest + 1)]
    return DrafterTuning(name, step, proposes, by_position, expected_speedups(passes, step / base, proposes, by_position), measured)


def _counted(name: str, results: Sequence[GenerationResult]) -> tuple[float, tuple[float, ...]]:
    """Share of the rounds in which the drafter proposed, and acceptance by position, each given that of the one before."""
    drafted, accepted, rounds = Counter[int](), Counter[int](), 0
    for result in results:
        drafted.update(result.stats.drafted_by_drafter.get(name, {}))
        accepted.update(result.stats.accepted_by_drafter.get(name, {}))
        rounds += result.stats.target_passes
    # Near the end of a text drafts are shorter: a position counts where it was drafted at all.
    tried = {position: min(drafted[position], accepted[position - 1] if position > 1 else drafted[1]) for position in sorted(drafted)}
    by_position = tuple(accepted[position] / count if count else 0.0 for position, count in tried.items())
    return min(1.0, drafted[1] / rounds) if rounds else 0.0, by_position  # a tree may have several first tokens


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
