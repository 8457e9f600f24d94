"""Prompts to measure with: the few written for this project, or a file in Spec-Bench's format."""

from __future__ import annotations

import json
from pathlib import Path

OWN = Path(__file__).with_name("prompts.jsonl")


def read_prompts(path: Path = OWN, limit: int | None = None) -> list[tuple[str, str]]:
    """``(category, first turn)`` of each line; with a limit, questions spread evenly over the file."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if limit is not None and limit < len(rows):
        rows = [rows[index * len(rows) // limit] for index in range(limit)]
    return [(row["category"], row["turns"][0]) for row in rows]
