"""Drafters of other packages, found through the entry points ``edgespec.drafters``.

An entry point names a callable from :class:`~edgespec.runtime.drafters.Resources` to a drafter, for instance its class. It is only
imported when the drafter is asked for.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from edgespec.errors import EdgespecError, RuntimeFailure, UsageError

if TYPE_CHECKING:
    from importlib import metadata

    from edgespec.runtime.drafters import Drafter, Resources

GROUP = "edgespec.drafters"


@functools.cache
def _entry_points() -> dict[str, metadata.EntryPoint]:
    """By name; of several with one name the first that is installed counts, as it does for commands."""
    from importlib import metadata  # a tenth of the time that importing the runtime takes, and only needed here

    found: dict[str, metadata.EntryPoint] = {}
    for entry in metadata.entry_points(group=GROUP):
        found.setdefault(entry.name, entry)
    return found


def names() -> tuple[str, ...]:
    """The drafters that other packages bring. ``auto``, ``none`` and names with a comma mean something else already."""
    return tuple(name for name in _entry_points() if name not in ("auto", "none") and "," not in name)


def load(name: str) -> Callable[[Resources], Drafter]:
    """The factory of another package's drafter.

    Raises:
        UsageError: it cannot be imported, or is nothing that can be called.
    """
    entry = _entry_points()[name]
    label = f"drafter {name!r} ({entry.value})"
    try:
        make = entry.load()
    except Exception as error:
        raise UsageError(f"{label} cannot be loaded: {_short(error)}") from error
    if not callable(make):
        raise UsageError(f"{label} is {type(make).__name__}, not a class or function that makes a drafter")
    return functools.partial(_make, label, make)


def _make(label: str, make: Callable[[Resources], Drafter], resources: Resources) -> Drafter:
    from edgespec.runtime.drafters.guarded import Guarded

    return Guarded(make, resources, label)


@contextlib.contextmanager
def reported(label: str, what: str) -> Iterator[None]:
    """Turn an exception of foreign code into one line that says whose it is and what it was doing."""
    try:
        yield
    except EdgespecError:
        raise
    except Exception as error:
        raise RuntimeFailure(f"{label} {what}: {_short(error)}") from error


def _short(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
