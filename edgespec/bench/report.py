"""One self-contained HTML page of a measurement: tables, charts as inline SVG, and a sample with its tokens coloured by origin."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec.bench.charts import GREY, as_svg, draw_acceptance, draw_costs, draw_memory, legend, new_axes
from edgespec.bench.measure import BASE, Measured
from edgespec.bench.sample import TARGET, Origin
from edgespec.bench.summary import HEADER, speed_rows
from edgespec.errors import UsageError
from edgespec.files import advice, whole

if TYPE_CHECKING:
    from edgespec.runtime.memory.trace import MemoryTrace

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1c2430; background: #fff }
table { border-collapse: collapse; margin: 1rem 0 } td, th { padding: .25rem .75rem; text-align: right; border-bottom: 1px solid #d5dbe3 }
td:first-child, th:first-child { text-align: left } .origin { border-radius: 3px } pre { white-space: pre-wrap }
svg { max-width: 100%; height: auto } .note { color: #5a6472 }
"""
COLOURS = ("#cfe8d5", "#cfdff5", "#f8dcc4", "#e5d5f0", "#f5d3d8", "#e9e5b8", "#cdeaea")
"""Of the drafters in a sample, in the order in which they come up. What the target wrote by itself has none."""


def check_report_file(path: Path, option: str) -> None:
    """Refuse, before any work, a file that could not be written or drawn in the end."""
    if path.is_dir():
        raise UsageError(f"{option}: {path}: is a folder, name a file")
    if not path.parent.is_dir():
        raise UsageError(f"{option}: {path.parent}: no such folder")
    new_axes()


def write_page(path: Path, page: str, option: str) -> None:
    """Write all of the page, or leave what was there before.

    Raises:
        UsageError: the disk is full, or the file cannot be written.
    """
    try:
        with whole(path) as file:
            file.write(page.encode())
    except OSError as error:
        raise UsageError(f"{option}: {path}: cannot be written: {error.strerror}{advice(error)}") from error


def html_report(
    measured: Measured, facts: dict[str, Any], costs: dict[int, float], sample: tuple[str, Sequence[Origin]], memory: MemoryTrace
) -> str:
    """The page.

    Args:
        measured: the measurement.
        facts: what it was measured on, shown as it is.
        costs: milliseconds of a target pass by width.
        sample: the name of an arm, and one of its answers.
        memory: what was resident while it was measured.
    """
    arms = [arm for arm in measured.answers if arm != BASE]
    by_category = [
        [category or "all", *(f"{measured.speedup(arm, category):.2f}" for arm in arms)] for category in (None, *measured.categories)
    ]
    acceptance = {arm: shares for arm in measured.answers if (shares := measured.acceptance_by_position(arm))}
    skipped = "".join(f"<li>{html.escape(reason)}</li>" for reason in measured.skipped)
    arm, origins = sample
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>edgespec bench</title><style>{STYLE}</style></head><body>
<h1>edgespec bench</h1>{table([[str(name), str(value)] for name, value in facts.items()])}
{f"<p>Left out:</p><ul>{skipped}</ul>" if skipped else ""}
<h2>Speed by kind of question</h2><p class="note">Geometric mean of the speed over plain decoding's at one token a pass ("{BASE}").</p>
{table(by_category, ["", *arms])}
{chart(lambda axes: draw_speedups(axes, measured))}
<h2>Acceptance by position</h2><p class="note">Share of the drafted tokens that were accepted, by their position in the draft.</p>
{chart(lambda axes: draw_acceptance(axes, acceptance))}
<h2>Cost of a pass by width</h2><p class="note">Milliseconds of a target pass by the number of tokens in it.</p>
{chart(lambda axes: draw_costs(axes, costs))}
<h2>Memory over time</h2><p class="note">Resident after each answer; a line marks the first answer of each way of decoding, which loads what
it needs. Models stay loaded, and threads of a model that is not asked rest.</p>
{chart(lambda axes: draw_memory(axes, memory))}
<h2>A sample</h2><p class="note">By "{html.escape(arm)}"; tokens that were drafted and accepted are marked, by who drafted them.</p>
{coloured(origins)}
<h2>All figures</h2>{table(speed_rows(measured), HEADER)}
</body></html>
"""


def table(rows: Sequence[Sequence[str]], header: Sequence[str] = ()) -> str:
    """Rows of text as a table."""

    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return "<table>" + (line(header, "th") if header else "") + "".join(line(row, "td") for row in rows) + "</table>"


def coloured(sample: Sequence[Origin]) -> str:
    """The sample's text, each origin in a colour of its own, with a legend."""
    names = dict.fromkeys(piece.name for piece in sample if piece.name != TARGET)
    colours = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(names)}

    def span(text: str, name: str) -> str:
        if name == TARGET:
            return html.escape(text)
        return f'<span class="origin" title="{html.escape(name)}" style="background: {colours[name]}">{html.escape(text)}</span>'

    legend = " ".join([*(span(f" {name} ", name) for name in names), f"{TARGET}: unmarked"])
    return f"<p>{legend}</p><pre>{''.join(span(piece.text, piece.name) for piece in sample)}</pre>"


def draw_speedups(axes: Any, measured: Measured) -> None:
    """Bars by category, one colour for each arm; the line is plain decoding."""
    arms = [arm for arm in measured.answers if arm != BASE]
    for index, arm in enumerate(arms):
        heights = [measured.speedup(arm, category) for category in measured.categories]
        places = [number + (index + 0.5) * 0.8 / len(arms) - 0.4 for number in range(len(heights))]
        axes.bar(places, heights, width=0.8 / len(arms), label=arm)
    axes.axhline(1.0, color=GREY, linewidth=1)
    axes.set_xticks(range(len(measured.categories)), measured.categories, rotation=30, ha="right")
    axes.set_ylabel("times plain decoding")
    legend(axes)


def chart(draw: Callable[[Any], None]) -> str:
    """What ``draw`` puts on axes."""
    figure, axes = new_axes()
    draw(axes)
    return as_svg(figure)
