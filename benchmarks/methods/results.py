"""Answers so far, in a file that is added to question by question, and what follows from them."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.methods.arms import BASE, FAST, PLAIN
from edgespec.bench.prompts import Question, spread
from edgespec.errors import UsageError

MULTI_TURN = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
"""Categories of MT-bench, which Spec-Bench counts as one."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """One method's answer to one question; positions in a draft count from 1."""

    ids: list[int]
    decode_s: float
    passes: int
    drafted: dict[int, int]
    accepted: dict[int, int]

    @staticmethod
    def of(told: dict[str, Any]) -> Answer:
        """Of what a worker answers, or a line of the file."""
        positions = ({int(position): count for position, count in told[f"{name}_by_position"].items()} for name in ("drafted", "accepted"))
        return Answer(told["ids"], told["decode_s"], told["target_passes"], *positions)

    @property
    def speed(self) -> float:
        """Tokens per second after the first."""
        return (len(self.ids) - 1) / self.decode_s if self.decode_s else 0.0


@dataclasses.dataclass(frozen=True)
class Results:
    """Answers by question, each of all methods; ``categories`` are the questions'."""

    answers: dict[str, dict[str, Answer]]
    categories: dict[str, str]

    @property
    def kinds(self) -> list[str]:
        return sorted(set(self.categories.values()))

    def of(self, method: str, category: str | None) -> list[tuple[Answer, Answer]]:
        """The method's answers to the questions of a category, or to all, each with plain decoding's that it has to equal."""
        plain = BASE if method.endswith(FAST) else PLAIN
        return [(found[method], found[plain]) for key, found in self.answers.items() if category in (None, self.categories[key])]

    def speedups(self, method: str, category: str | None) -> list[float]:
        """Speed over that of plain decoding at one token a pass, question by question."""
        found = [answers for key, answers in self.answers.items() if category in (None, self.categories[key])]
        return [answers[method].speed / answers[BASE].speed for answers in found if answers[BASE].speed]

    def tokens_per_pass(self, method: str, category: str | None) -> float:
        found = [answer for answer, _ in self.of(method, category)]
        return sum(len(answer.ids) - 1 for answer in found) / max(1, sum(answer.passes for answer in found))

    def equal(self, method: str, category: str | None) -> tuple[int, int]:
        """Texts that are plain decoding's in the same exactness, and of how many."""
        found = self.of(method, category)
        return sum(answer.ids == plain.ids for answer, plain in found), len(found)

    def acceptance(self, method: str, category: str | None) -> list[float]:
        """Share of the tokens drafted at each position, from the first, that were accepted."""
        drafted, accepted = Counter[int](), Counter[int]()
        for answer, _ in self.of(method, category):
            drafted.update(answer.drafted)
            accepted.update(answer.accepted)
        return [accepted[position] / count for position, count in sorted(drafted.items())]


class ResultFile:
    """A line about the measurement, and then one for each question.

    Raises:
        UsageError: the file is of another measurement, or cannot be read.
    """

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path = path
        self.about = about
        self.lines: list[dict[str, Any]] = []
        if not path.exists():
            self._append(about)
            return
        whole = path.read_text(encoding="utf-8").rpartition("\n")[0]  # the last line may have been cut off
        try:
            first, *self.lines = [json.loads(line) for line in whole.splitlines()]
        except ValueError as error:
            raise UsageError(f"{path}: has a line that is no JSON: {error}") from error
        for name in about.keys() | first.keys():
            if about.get(name) != first.get(name):
                raise UsageError(
                    f"{path}: is of another measurement, {name} {first.get(name)!r} in place of {about.get(name)!r}; name another file"
                )
        path.write_text(whole + "\n", encoding="utf-8")

    def missing(self, questions: Iterable[Question]) -> list[Question]:
        """Those that have no answers yet."""
        known = {line["question"] for line in self.lines}
        return [question for question in questions if key_of(question) not in known]

    def add(self, question: Question, answers: dict[str, dict[str, Any]]) -> None:
        self.lines.append({"question": key_of(question), "category": kind_of(question), "answers": answers})
        self._append(self.lines[-1])

    def results(self) -> Results:
        answers = {line["question"]: {method: Answer.of(told) for method, told in line["answers"].items()} for line in self.lines}
        return Results(answers, {line["question"]: line["category"] for line in self.lines})

    def _append(self, line: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def kind_of(question: Question) -> str:
    """Its row in the tables."""
    return "multi-turn" if question.category in MULTI_TURN else question.category


def balanced(questions: Iterable[Question], count: int) -> list[Question]:
    """So many of each kind, or all that there are, spread over those of the kind; kinds take turns."""
    kinds: dict[str, list[Question]] = {}
    for question in questions:
        kinds.setdefault(kind_of(question), []).append(question)
    chosen = [spread(found, count) for found in kinds.values()]
    return [question for turn in itertools.zip_longest(*chosen) for question in turn if question is not None]


def key_of(question: Question) -> str:
    """A short name for its text; benchmark questions themselves are not copied."""
    return hashlib.sha256(question.text.encode()).hexdigest()[:16]
