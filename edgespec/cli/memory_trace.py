"""``edgespec run --memory-trace FILE``: what was resident while a prompt was answered, as a picture."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.errors import UsageError

if TYPE_CHECKING:
    from edgespec.runtime.memory.plan import Plan
    from edgespec.runtime.memory.trace import MemoryTrace


def check_picture(path: Path | None) -> None:
    """Refuse what could not be drawn, before any work.

    Raises:
        UsageError: no matplotlib, no SVG file, or no folder for it.
    """
    if path is None:
        return
    if path.suffix != ".svg":
        raise UsageError(f"--memory-trace {path}: the picture is an SVG file, name one that ends in .svg")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--memory-trace {path}: there is no folder {path.absolute().parent}")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--memory-trace needs matplotlib: pip install 'edgespec[bench]'")


@contextlib.contextmanager
def tracing(path: Path | None) -> Iterator[MemoryTrace | None]:
    """Trace the body, for a picture at ``path``; nothing for None."""
    if path is None:
        yield None
        return
    from edgespec.runtime.memory.trace import MemoryTrace

    with MemoryTrace() as trace:
        yield trace


def draw(path: Path, trace: MemoryTrace, plan: Plan) -> None:
    """Write the picture. matplotlib is imported only now: it would be in it otherwise.

    Raises:
        UsageError: the file cannot be written.
    """
    from edgespec.bench.charts import as_svg, draw_memory, new_axes, save

    figure, axes = new_axes()
    draw_memory(axes, trace, plan)
    save(path, as_svg(figure).encode())
