"""Prompts to measure with: the few that ship with the package, or a file in Spec-Bench's format (Xia et al. 2024)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from edgespec.errors import UsageError

OWN = Path(__file__).with_name("prompts.jsonl")


@dataclasses.dataclass(frozen=True)
class Question:
    category: str
    text: str


def read_prompts(path: Path = OWN, limit: int | None = None) -> list[Question]:
    """The first turn of each line ``{"category": ..., "turns": [...]}``; with a limit, lines spread evenly over the file.

    Raises:
        UsageError: the file cannot be read, is empty, or has a line of another form, which is named by its number.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
    questions = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            question = Question(str(row.get("category", "")), row["turns"][0])
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
            raise UsageError(f'{path}: line {number}: expected {{"category": "...", "turns": ["..."]}}') from error
        if not isinstance(question.text, str) or not question.text.strip():
            raise UsageError(f"{path}: line {number}: the first turn is not a text")
        questions.append(question)
    if not questions:
        raise UsageError(f"{path}: has no questions")
    return questions if limit is None else spread(questions, limit)


def spread(questions: Sequence[Question], count: int) -> list[Question]:
    """So many of them, evenly over all; all where there are no more."""
    return [questions[index * len(questions) // count] for index in range(count)] if count < len(questions) else list(questions)
