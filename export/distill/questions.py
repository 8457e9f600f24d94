"""Which texts a shard of the corpus has: self-asked questions, tasks on varied topics, and turns about earlier answers.

Everything is drawn from (seed, shard), so that a shard can be made again, on any machine and in any order.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edgespec.bench.prompts import Question, read_prompts
from edgespec.errors import UsageError
from edgespec.export.distill import seeds

Rng = np.random.Generator
Turns = tuple[str, ...]
"""The user's and the assistant's turns in turn, the user's first."""
ASKED, ABOUT_ANSWERS = 0.4, 0.3  # shares of a shard; the rest are tasks
SAMPLED = 0.5  # share of answers that are drawn and not the most likely text
TEMPERATURES = (0.6, 0.8, 1.0)
PASSAGES = (2, 3, 4)


@dataclasses.dataclass(frozen=True)
class Prompt:
    """What the target is to answer. ``turns`` is one text without turns for a target that is no chat model."""

    category: str
    turns: Turns
    temperature: float = 0.0


@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer to talk about further."""

    prompt: Prompt
    text: str


def rng_of(seed: int, shard: int, purpose: int) -> Rng:
    return np.random.default_rng((seed, shard, purpose))


def opener(rng: Rng) -> str:
    """How a user's turn begins that the target finishes; one in three about a topic."""
    begin = _pick(rng, seeds.OPENERS)
    return f"{begin} {_pick(rng, seeds.TOPICS)}".strip() if rng.random() < 1 / 3 else begin


def task(rng: Rng) -> Prompt:
    """A turn on a topic."""
    category = _pick(rng, tuple(seeds.TASKS))
    return Prompt(category, (fill(_pick(rng, seeds.TASKS[category]), rng),))


def about_answers(rng: Rng, answers: Sequence[Answer]) -> Prompt:
    """A turn about one or several of ``answers``, in their conversation or in a new one."""
    answer = answers[int(rng.integers(len(answers)))]
    if rng.random() < 1 / 3:
        return Prompt("conversation", (*answer.prompt.turns, answer.text, fill(_pick(rng, seeds.FOLLOW_UPS), rng)))
    category = _pick(rng, tuple(seeds.ON_ANSWERS))
    chosen = rng.permutation(len(answers))[: int(rng.choice(PASSAGES))]
    passages = "\n\n".join(f"[{number}] {answers[int(index)].text}" for number, index in enumerate(chosen, 1))
    return Prompt(category, (fill(_pick(rng, seeds.ON_ANSWERS[category]), rng, answer=answer.text, passages=passages),))


def plain(rng: Rng) -> Prompt:
    """The beginning of a text."""
    return Prompt("plain", (fill(_pick(rng, seeds.PLAIN), rng),))


def temperature(rng: Rng) -> float:
    return float(rng.choice(TEMPERATURES)) if rng.random() < SAMPLED else 0.0


def fill(text: str, rng: Rng, **given: str) -> str:
    """``text`` with its places filled. What is put in may hold braces, so this is no formatting."""
    a, b = int(rng.integers(12, 200)), int(rng.integers(2, 12))
    values = {
        "topic": _pick(rng, seeds.TOPICS),
        "language": _pick(rng, seeds.LANGUAGES),
        "code": _pick(rng, seeds.CODE_LANGUAGES),
        "job": _pick(rng, seeds.CODE_JOBS),
        "name": _pick(rng, seeds.NAMES),
        "things": _pick(rng, seeds.THINGS),
        "a": str(a),
        "b": str(b),
        "c": str(a + b * int(rng.integers(2, 20))),
    }
    for name, value in (values | given).items():
        text = text.replace(f"{{{name}}}", value)
    return text


def read_user_prompts(path: Path) -> list[Prompt]:
    """The user's prompts: a line of JSON each as in Spec-Bench for ``.jsonl``, else a line of text each.

    Raises:
        UsageError: it cannot be read or is malformed; the message names the line.
    """
    if path.suffix in (".jsonl", ".json"):
        return [_own(question) for question in read_prompts(path)]
    lines = [line.strip() for line in read_text("--prompts", path).splitlines()]
    if not any(lines):
        raise UsageError(f"--prompts {path}: has no prompts")
    for number, line in enumerate(lines, 1):
        if line.startswith("{"):
            with_hint = f"--prompts {path}: line {number} looks like JSON; name the file .jsonl"
            try:
                json.loads(line)
            except ValueError:
                continue
            raise UsageError(with_hint)
    return [Prompt("prompts", (line,)) for line in lines if line]


def read_text(option: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{option} {path}: cannot be read: {error}") from error


def _own(question: Question) -> Prompt:
    return Prompt(question.category or "prompts", (question.text,))


def _pick(rng: Rng, values: Sequence[str]) -> str:
    return values[int(rng.integers(len(values)))]
