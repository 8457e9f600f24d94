"""The closing tables in Markdown: method by kind of question."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from benchmarks.figures import median, row
from benchmarks.methods.arms import BASE, FAST, PLAIN
from benchmarks.methods.results import Results
from edgespec.bench.measure import geometric_mean

POSITIONS = 4  # of a draft, in a cell


def tables(results: Results, methods: Sequence[str]) -> str:
    """All tables, each with a line that says what it shows."""
    drafting = [method for method in methods if method not in (BASE, PLAIN)]
    exact = [method for method in drafting if not method.endswith(FAST)]
    fast = [method for method in drafting if method.endswith(FAST)]
    counts = {kind: sum(category == kind for category in results.categories.values()) for kind in results.kinds}

    def by_kind(rows: Iterable[str], cell: Callable[[str, str | None], str]) -> str:
        head = ["", f"all ({len(results.answers)})", *(f"{kind} ({count})" for kind, count in counts.items())]
        lines = [head, ["---"] * len(head), *([method, *(cell(method, kind) for kind in (None, *results.kinds))] for method in rows)]
        return "\n".join(map(row, lines))

    def equal(method: str, kind: str | None) -> str:
        same, count = results.equal(method, kind)
        return f"{same} of {count}"

    def changed(method: str, kind: str | None) -> str:
        same, count = results.equal(method, kind)
        return f"{1 - same / count:.0%}" if count else ""

    def acceptance(method: str, kind: str | None) -> str:
        return " ".join(f"{share:.2f}" for share in results.acceptance(method, kind)[:POSITIONS])

    speed = f'Speed over plain decoding at one token a pass ("{BASE}")'
    parts = [
        (f"{speed}, geometric mean over questions", [PLAIN, *drafting], _speed(results, geometric_mean)),
        (f"{speed}, median over questions, which disturbances of the machine hardly change", [PLAIN, *drafting], _speed(results, median)),
        ("Tokens per pass of the target", [PLAIN, *drafting], lambda method, kind: f"{results.tokens_per_pass(method, kind):.2f}"),
        (
            f"Share of drafted tokens that were accepted, at positions 1 to {POSITIONS} of a draft (guesses in spare rows included)",
            drafting,
            acceptance,
        ),
        ("Texts equal to plain decoding's, token for token", exact, equal),
        ("Share of texts that near-ties change under fast, against plain decoding at one token a pass", fast, changed),
    ]
    return "\n\n".join(f"{title}:\n\n{by_kind(rows, cell)}" for title, rows, cell in parts if rows)


def _speed(results: Results, middle: Callable[[list[float]], float]) -> Callable[[str, str | None], str]:
    return lambda method, kind: f"{middle(results.speedups(method, kind)):.2f}"
