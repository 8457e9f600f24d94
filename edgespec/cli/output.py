"""What several commands print: sizes, tables, JSON, progress bars."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click


def human_bytes(count: int) -> str:
    """``count`` bytes in decimal units, as disks and downloads are labelled: 134.5 MB."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.95 or unit == "GB":
            break
        size /= 1000
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"


def print_json(value: Any) -> None:
    """One JSON object on stdout. ``allow_nan`` is off: NaN is not JSON, and a reader in another language would stumble."""
    click.echo(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False))


def table(rows: Sequence[Sequence[str]], header: Sequence[str] = ()) -> str:
    """Rows in aligned columns, the first to the left and the others to the right; a rule below the header."""
    lines = [list(header), *map(list, rows)] if header else [list(row) for row in rows]
    if not lines:
        return ""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]

    def render(line: Sequence[str]) -> str:
        cells = (
            cell.ljust(width) if column == 0 else cell.rjust(width) for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        return "  ".join(cells).rstrip()

    text = [render(line) for line in lines]
    if header:
        text.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(text)


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Names and values, one pair a line, values aligned on the left."""
    width = max((len(name) for name, _ in pairs), default=0)
    return "\n".join(f"{name.ljust(width)}  {value}".rstrip() for name, value in pairs)


@contextlib.contextmanager
def progress(label: str, total: int, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr: yields a function that advances it. Nothing is drawn when stderr is not a terminal."""
    if not shown or not sys.stderr.isatty():
        yield lambda _: None
        return
    with click.progressbar(length=total, label=label, file=sys.stderr) as bar:
        yield bar.update
