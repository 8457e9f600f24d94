"""Charts, drawn with matplotlib, which only the bench extra brings."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec.errors import EdgespecError, UsageError
from edgespec.files import advice, whole

if TYPE_CHECKING:
    from edgespec.bench.tune import Tuning
    from edgespec.runtime.memory.plan import Plan
    from edgespec.runtime.memory.trace import MemoryTrace

FORMATS = (".svg", ".png")
MOST_POINTS = 400
CLOSE = 0.1  # marks within this part of the time would be written over one another
GREY = "#5a6472"


def new_axes(columns: int = 1) -> tuple[Any, Any]:
    """A figure and its axes, several beside one another for more than one column."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise EdgespecError("charts need matplotlib: pip install 'edgespec[bench]'") from error
    figure = Figure(figsize=(max(9, 5 * columns), 3.6), layout="constrained")
    axes = figure.subplots(1, columns)
    for each in axes if columns > 1 else [axes]:
        each.spines[["top", "right"]].set_visible(False)
    return figure, axes


def rendered(figure: Any, kind: str) -> bytes:
    """The figure as a file of this kind, "svg" or "png"."""
    out = io.BytesIO()
    figure.savefig(out, format=kind, dpi=144)
    return out.getvalue()


def as_svg(figure: Any) -> str:
    """The figure as an element that can stand in a page."""
    text = rendered(figure, "svg").decode()
    return text[text.index("<svg") :]


def check_chart_file(path: Path, option: str) -> None:
    """Refuse, before any work, a file that could not be written or drawn in the end."""
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"{option}: {path}: a chart is written as {' or '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise UsageError(f"{option}: {path.parent}: no such folder")
    new_axes()


def legend(axes: Any) -> None:
    """Names of the lines and bars above the axes, if there are any."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, ncols=4, loc="lower left", bbox_to_anchor=(0, 1))


def draw_costs(axes: Any, costs: dict[int, float]) -> None:
    """Milliseconds of a target pass by width."""
    axes.plot(list(costs), list(costs.values()), marker="o")
    axes.set_xlabel("tokens in the pass")
    axes.set_ylabel("ms")
    axes.set_ylim(bottom=0)


def draw_acceptance(axes: Any, by_position: dict[str, dict[int, float]]) -> None:
    """A line for each drafter: share of its tokens that are accepted, by position."""
    for name, shares in by_position.items():
        axes.plot(list(shares), list(shares.values()), marker="o", label=name)
    axes.set_xlabel("position in the draft")
    axes.set_ylabel("accepted")
    axes.set_ylim(0, 1.05)
    legend(axes)


def draw_memory(axes: Any, trace: MemoryTrace, plan: Plan | None = None) -> None:
    """What was resident over time, with the moments that the trace has names for, and what was planned if there was a plan."""
    samples = sorted(trace.samples, key=lambda sample: sample.seconds)
    samples = samples[:: len(samples) // MOST_POINTS + 1]
    seconds = [sample.seconds for sample in samples]
    private = [sample.usage.private / 1e6 for sample in samples]
    files = [sample.usage.evictable / 1e6 for sample in samples]
    axes.stackplot(seconds, private, files, labels=["private", "pages of files"], colors=["#4c78a8", "#b9d0e8"])
    if plan:
        axes.axhline(plan.peak / 1e6, color=GREY, linewidth=1, linestyle="--", label="predicted peak")
    if plan and plan.budget and plan.budget < 4 * plan.peak:
        axes.axhline(plan.budget / 1e6, color="#c44e52", linewidth=1, label="budget")
    for moment, names in _grouped(trace.marks, seconds[-1] * CLOSE):
        axes.axvline(moment, color=GREY, linewidth=0.8)
        side = "left" if moment < seconds[-1] / 10 else "right"
        axes.annotate(names, (moment, 1), xycoords=("data", "axes fraction"), rotation=90, va="top", ha=side, fontsize=8)
    axes.set_xlabel("seconds")
    axes.set_ylabel("MB resident")
    legend(axes)


def _grouped(marks: Sequence[tuple[float, str]], close: float) -> list[tuple[float, str]]:
    """Marks with a line of text for each name; those that follow within ``close`` seconds of a first one are put together with it."""
    groups: list[tuple[float, str]] = []
    for moment, name in marks:
        if groups and moment - groups[-1][0] < close:
            groups[-1] = groups[-1][0], f"{groups[-1][1]}\n{name}"
        else:
            groups.append((moment, name))
    return groups


def write_tuning_chart(path: Path, tuning: Tuning) -> None:
    """Costs, acceptance and expected speed, beside one another; the best length of each drafter is marked. Of drafters that size
    their drafts themselves, there is a dashed line at the speed that was measured.

    Raises:
        UsageError: the file cannot be written.
    """
    figure, (costs, acceptance, speed) = new_axes(3)
    draw_costs(costs, tuning.pass_ms)
    draw_acceptance(acceptance, {found.name: dict(enumerate(found.by_position, 1)) for found in tuning.drafters})
    for number, found in enumerate(tuning.drafters):
        color = f"C{number}"  # as in the panel beside it
        if found.best_length is None:
            speed.axhline(found.speedup, color=color, linestyle="--", label=found.name)
        else:
            speed.plot(range(len(found.speedups)), found.speedups, color=color, label=found.name)
            speed.plot([found.best_length], [found.speedup], marker="o", color=color)
    speed.axhline(1.0, color=GREY, linewidth=1)
    speed.set_xlabel("draft length")
    speed.set_ylabel("expected, times plain decoding")
    speed.set_ylim(bottom=0)
    legend(speed)
    save(path, rendered(figure, path.suffix[1:].lower()))


def save(path: Path, picture: bytes) -> None:
    """Write a picture, whole or not at all.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        with whole(path) as file:
            file.write(picture)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}{advice(error)}") from error
