"""One self-contained HTML page of a measurement: tables, charts as inline SVG, and a sample with its drafted tokens coloured."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from edgespec.bench.charts import as_svg, draw_acceptance, draw_costs, legend, new_axes
from edgespec.bench.measure import BASE, Measured

if TYPE_CHECKING:
    from edgespec.runtime import Piece

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1c2430; background: #fff }
table { border-collapse: collapse; margin: 1rem 0 } td, th { padding: .25rem .75rem; text-align: right; border-bottom: 1px solid #d5dbe3 }
td:first-child, th:first-child { text-align: left } .drafted { background: #cfe8d5; border-radius: 3px } pre { white-space: pre-wrap }
svg { max-width: 100%; height: auto } .note { color: #5a6472 }
"""


def html_report(measured: Measured, facts: dict[str, Any], costs: dict[int, float], sample: Sequence[Piece]) -> str:
    """The page.

    Args:
        measured: the measurement.
        facts: what it was measured on, shown as it is.
        costs: milliseconds of a target pass by width.
        sample: pieces of one answer.
    """
    arms = [arm for arm in measured.answers if arm != BASE]
    header = "".join(f"<th>{html.escape(arm)}</th>" for arm in arms)
    rows = "".join(
        f"<tr><td>{html.escape(category or 'all')}</td>"
        + "".join(f"<td>{measured.speedup(arm, category):.2f}</td>" for arm in arms)
        + "</tr>"
        for category in (None, *measured.categories)
    )
    known = "".join(f"<tr><td>{html.escape(str(name))}</td><td>{html.escape(str(value))}</td></tr>" for name, value in facts.items())
    acceptance = {arm: shares for arm in measured.answers if (shares := measured.acceptance_by_position(arm))}
    skipped = "".join(f"<li>{html.escape(reason)}</li>" for reason in measured.skipped)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>edgespec bench</title><style>{STYLE}</style></head><body>
<h1>edgespec bench</h1><table>{known}</table>
<h2>Speed</h2><p class="note">Geometric mean of tokens per second over plain decoding at one token a pass ("{BASE}").</p>
<table><tr><th></th>{header}</tr>{rows}</table>
{speedup_chart(measured)}
<h2>Cost of a pass</h2><p class="note">Milliseconds of a target pass by the number of tokens in it.</p>
{chart(draw_costs, costs)}
<h2>Acceptance</h2><p class="note">Share of the drafted tokens that were accepted, by their position in the draft.</p>
{chart(draw_acceptance, acceptance)}
<h2>A sample</h2><p class="note">Tokens that were drafted and accepted are marked.</p><pre>{coloured(sample)}</pre>
{f"<h2>Left out</h2><ul>{skipped}</ul>" if skipped else ""}
</body></html>
"""


def coloured(sample: Sequence[Piece]) -> str:
    """The sample's text; a piece is marked when any of its tokens was drafted."""
    return "".join(
        f'<span class="drafted">{html.escape(piece.text)}</span>' if any(piece.drafted) else html.escape(piece.text) for piece in sample
    )


def speedup_chart(measured: Measured) -> str:
    """Bars by category, one colour for each arm; the line is plain decoding."""
    figure, axes = new_axes()
    arms = [arm for arm in measured.answers if arm != BASE]
    for index, arm in enumerate(arms):
        heights = [measured.speedup(arm, category) for category in measured.categories]
        places = [number + (index + 0.5) * 0.8 / len(arms) - 0.4 for number in range(len(heights))]
        axes.bar(places, heights, width=0.8 / len(arms), label=arm)
    axes.axhline(1.0, color="#5a6472", linewidth=1)
    axes.set_xticks(range(len(measured.categories)), measured.categories, rotation=30, ha="right")
    axes.set_ylabel("times plain decoding")
    legend(axes)
    return as_svg(figure)


def chart(draw: Callable[[Any, Any], None], data: Any) -> str:
    """``data`` as ``draw`` puts it on axes."""
    figure, axes = new_axes()
    draw(axes, data)
    return as_svg(figure)
