"""A measurement as rows of text, for the terminal and for the report."""

from __future__ import annotations

from edgespec.bench.measure import BASE, PLAIN, Measured

HEADER = ("questions", "decoding", "tokens/s", "speed", "tokens/pass", "accepted", "equal to plain")


def speed_rows(measured: Measured) -> list[tuple[str, ...]]:
    """A row for each category and arm, all questions together first; columns as in :data:`HEADER`."""
    rows: list[tuple[str, ...]] = []
    for category in (None, *measured.categories):
        for index, arm in enumerate(measured.answers):
            answers = [a for q, a in zip(measured.questions, measured.answers[arm], strict=True) if category in (None, q.category)]
            drafted = sum(answer.drafted for answer in answers)
            speed = sorted(answer.decode_tokens_per_s for answer in answers)[len(answers) // 2]
            rows.append(
                (
                    (category or "all") if index == 0 else "",
                    arm,
                    f"{speed:.1f}",
                    f"{measured.speedup(arm, category):.2f}x",
                    f"{sum(answer.tokens_per_pass for answer in answers) / len(answers):.2f}",
                    f"{sum(answer.accepted for answer in answers) / drafted:.0%}" if drafted else "",
                    "" if arm in (BASE, PLAIN) else f"{sum(answer.equal for answer in answers)} of {len(answers)}",
                )
            )
    return rows
