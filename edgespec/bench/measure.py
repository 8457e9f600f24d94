"""Ways of decoding side by side: every question is answered by every arm in turn, several times, and medians count.

The base of every ratio is plain decoding in passes of one token, the fastest plain decoding there is, so what exactness
costs is in the ratios. A machine that slows down slows all arms of a question alike.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgespec.bench.prompts import Question
from edgespec.errors import CapacityError, UsageError

if TYPE_CHECKING:
    from edgespec.runtime import Engine

BASE, PLAIN = "plain, fast", "plain"


@dataclasses.dataclass(frozen=True)
class Answer:
    """One arm's answer to one question: medians of the repetitions. ``decode_tokens_per_s`` counts from the first token on."""

    decode_tokens_per_s: float
    time_to_first_token_s: float
    prompt_tokens: int
    new_tokens: int
    drafted: int
    accepted: int
    tokens_per_pass: float
    equal: bool
    """The very tokens of exact plain decoding, every time."""
    speculation_off: str | None = None
    """Why its drafters drafted nothing at the end, if they did not."""
    drafted_by_position: dict[int, int] = dataclasses.field(default_factory=dict)
    accepted_by_position: dict[int, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Measured:
    """``answers[arm]`` has one entry for each of ``questions``."""

    questions: list[Question]
    answers: dict[str, list[Answer]]
    skipped: list[str]
    """Questions that do not fit into the cache, and why."""

    @property
    def texts_equal(self) -> bool:
        """Whether every arm wrote the tokens of exact plain decoding; the base, which is not exact, may differ."""
        return all(answer.equal for arm, answers in self.answers.items() for answer in answers if arm != BASE)

    def tokens_per_pass(self, arm: str) -> float:
        return statistics.fmean(answer.tokens_per_pass for answer in self.answers[arm])

    def ratio(self, arm: str, number: int) -> float:
        """Speed of ``arm`` over the base's at one question."""
        base = self.answers[BASE][number].decode_tokens_per_s
        return self.answers[arm][number].decode_tokens_per_s / base if base else 0.0

    def ratios(self, arm: str, category: str | None = None) -> list[float]:
        """Speed of ``arm`` over the base's, question by question; those of one category, if it is named."""
        return [self.ratio(arm, number) for number, question in enumerate(self.questions) if category in (None, question.category)]

    def speedup(self, arm: str, category: str | None = None) -> float:
        """Geometric mean of the ratios."""
        return geometric_mean(self.ratios(arm, category))

    def acceptance_by_position(self, arm: str) -> dict[int, float]:
        """Share of the tokens drafted at each position, from 1, that were accepted, over all questions."""
        drafted, accepted = collections.Counter[int](), collections.Counter[int]()
        for answer in self.answers[arm]:
            drafted.update(answer.drafted_by_position)
            accepted.update(answer.accepted_by_position)
        return {position: accepted[position] / count for position, count in sorted(drafted.items())}

    @property
    def categories(self) -> list[str]:
        return sorted({question.category for question in self.questions})

    def as_dict(self) -> dict[str, Any]:
        return {
            "questions": [dataclasses.asdict(question) for question in self.questions],
            "answers": {arm: [dataclasses.asdict(answer) for answer in answers] for arm, answers in self.answers.items()},
            "skipped": self.skipped,
            "speedups": {arm: {"all": self.speedup(arm), **{c: self.speedup(arm, c) for c in self.categories}} for arm in self.answers},
        }


def arms_of(drafters: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Options of ``generate`` by the name of an arm: both kinds of plain decoding, and ``NAME`` or ``NAME:K`` for each drafter."""
    arms: dict[str, dict[str, Any]] = {BASE: {"drafter": "none", "exactness": "fast"}, PLAIN: {"drafter": "none"}}
    for text in drafters:
        name, _, length = text.partition(":")
        if length and not length.isdecimal():
            raise UsageError(f"--drafter: {text!r} is neither a name nor a name with a draft length, as ngram:3")
        if name != "none":
            arms[text] = {"drafter": name, **({"draft_length": int(length)} if length else {})}
    return arms


def measure(
    engine: Engine,
    questions: Iterable[Question],
    arms: Mapping[str, Mapping[str, Any]],
    *,
    repetitions: int,
    max_new_tokens: int,
    on_run: Callable[[int], None] = lambda _: None,
) -> Measured:
    """Measure; Ctrl-C ends it early with the questions that are complete."""
    measured = Measured([], {arm: [] for arm in arms}, [])
    try:
        for number, question in enumerate(questions):
            try:
                # The first question warms up caches and the controller's estimates, so it is asked once more than the others.
                answers = _ask(engine, question.text, arms, repetitions + (number == 0), max_new_tokens, on_run)
            except CapacityError as error:
                measured.skipped.append(f"{question.text[:40]!r}: {error}")
                continue
            measured.questions.append(question)
            for arm, answer in answers.items():
                measured.answers[arm].append(answer)
    except KeyboardInterrupt:
        measured.skipped.append("interrupted: the questions after this were not asked")
    return measured


def _ask(
    engine: Engine, text: str, arms: Mapping[str, Mapping[str, Any]], repetitions: int, max_new_tokens: int, on_run: Callable[[int], None]
) -> dict[str, Answer]:
    results: dict[str, list[Any]] = {arm: [] for arm in arms}
    for _ in range(repetitions):
        for arm, options in arms.items():
            results[arm].append(engine.generate(text, max_new_tokens=max_new_tokens, **options))
            on_run(1)
    plain = results[PLAIN][-1].token_ids

    def answer(found: list[Any]) -> Answer:
        stats = found[-1].stats
        return Answer(
            decode_tokens_per_s=statistics.median(result.stats.decode_tokens_per_s for result in found),
            time_to_first_token_s=statistics.median(result.stats.time_to_first_token_s for result in found),
            prompt_tokens=stats.prompt_tokens,
            new_tokens=stats.new_tokens,
            drafted=stats.drafted,
            accepted=stats.accepted,
            tokens_per_pass=stats.tokens_per_pass,
            equal=all(result.token_ids == plain for result in found),
            speculation_off=stats.speculation_off,
            drafted_by_position=dict(stats.drafted_by_position),
            accepted_by_position=dict(stats.accepted_by_position),
        )

    return {arm: answer(found) for arm, found in results.items()}


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(math.log(value) for value in values)) if values and min(values) > 0 else 0.0
