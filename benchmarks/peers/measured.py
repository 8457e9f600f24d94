"""What was measured of the engines, and the asking, in turns. An interrupted measurement keeps the questions that all have answered."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.figures import ratio
from benchmarks.peers.environments import Unavailable
from benchmarks.peers.process import Worker
from edgespec.files import whole

Arm = tuple[str, str]
"""An engine and one of its modes."""
Turn = tuple[int, int]
"""A round, from 1, and the number of a question."""


@dataclasses.dataclass
class Measured:
    """All answers, and what went wrong.

    Attributes:
        lengths: of the prompts, in tokens.
        rounds: how many were asked for.
        answers: by arm, then by turn.
        failed: the error of each arm, or process of an engine, that gave up.
        kl: of each engine and arithmetic, against the float model.
        interrupted: whether turns are missing.
    """

    lengths: list[int]
    new_tokens: int
    rounds: int
    answers: dict[Arm, dict[Turn, dict[str, Any]]] = dataclasses.field(default_factory=dict)
    failed: dict[Arm, str] = dataclasses.field(default_factory=dict)
    kl: dict[Arm, float] = dataclasses.field(default_factory=dict)
    interrupted: bool = False

    @property
    def turns(self) -> int:
        """Complete ones, of ``rounds`` times the number of questions."""
        return max((len(found) for found in self.answers.values()), default=0)

    def decode(self, arm: Arm) -> dict[Turn, float]:
        """Tokens per second after the first, of every answer."""
        return {turn: (self.new_tokens - 1) / answer["decode_s"] for turn, answer in self.answers[arm].items()}

    def prefill(self, arm: Arm) -> dict[Turn, float]:
        """Prompt tokens per second up to the first token, of every answer."""
        return {turn: self.lengths[turn[1]] / answer["prefill_s"] for turn, answer in self.answers[arm].items()}

    def base(self, arm: Arm) -> Arm:
        """The plain decoding that an arm's text has to equal: its engine's, with the same weights and arithmetic, which a mode's name
        has behind a comma; of ours, exact plain decoding but where near-ties may fall the other way."""
        name, mode = arm
        way, *variant = mode.split(", ")
        exact, plain = ((name, ", ".join([of, *variant])) for of in ("plain exact", "plain"))
        return exact if exact in self.answers and way != "plain" and not way.endswith(" fast") else plain

    def equal(self, arm: Arm) -> tuple[int, int] | None:
        """Questions whose text is that of plain decoding in every round, and of how many; None if that was not measured."""
        plain = self.answers.get(self.base(arm))
        if not plain or self.base(arm) == arm:
            return None
        both = self.answers[arm].keys() & plain.keys()
        differ = {turn[1] for turn in both if self.answers[arm][turn]["ids"] != plain[turn]["ids"]}
        asked = {turn[1] for turn in both}
        return len(asked - differ), len(asked)

    def as_dict(self) -> dict[str, Any]:
        return {
            "complete": not self.interrupted and self.turns == self.rounds * len(self.lengths),
            "rounds": self.rounds,
            "new_tokens": self.new_tokens,
            "prompt_tokens": self.lengths,
            "kl": {": ".join(arm): value for arm, value in self.kl.items()},
            "failed": {": ".join(arm): error for arm, error in self.failed.items()},
            "answers": {
                ": ".join(arm): [{"round": turn[0], "question": turn[1], **answer} for turn, answer in found.items()]
                for arm, found in self.answers.items()
            },
        }

    def save(self, path: Path) -> None:
        """Write all that there is, in place of what was written before."""
        with whole(path) as file:
            file.write(json.dumps(self.as_dict()).encode())


def paired_ratio(ours: dict[Turn, float], theirs: dict[Turn, float]) -> float | None:
    """Median of ours / theirs over the turns that both have."""
    both = sorted(ours.keys() & theirs.keys())
    return ratio([ours[turn] for turn in both], [theirs[turn] for turn in both]) if both else None


def measure(measured: Measured, workers: dict[Arm, Worker], prompts: list[list[int]], on_turn: Callable[[], None]) -> None:
    """Ask every engine every question in every round; the engines take turns question by question, Ctrl-C ends it.

    An arm that fails is out of it from then on, and its error is kept.
    """
    running = dict(workers)
    measured.answers = {arm: {} for arm in workers}

    def ask(number: int, question: int) -> dict[Arm, dict[str, Any]]:
        found = {}
        for arm, worker in list(running.items()):
            try:
                found[arm] = worker.ask(arm[1], prompts[question], measured.new_tokens)
            except Unavailable as error:
                measured.failed[arm] = str(error) + (f" (round {number}, question {question})" if number else "")
                del running[arm]
        return found

    try:
        for question in range(min(2, len(prompts))):
            ask(0, question)  # warms up
        for number in range(1, measured.rounds + 1):
            for question in range(len(prompts)):
                for arm, answer in ask(number, question).items():
                    measured.answers[arm][number, question] = answer
                on_turn()
    except KeyboardInterrupt:
        measured.interrupted = True
    measured.answers = {arm: found for arm, found in measured.answers.items() if found}
