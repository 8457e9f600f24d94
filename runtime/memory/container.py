"""What a container leaves this process: memory limits of Linux control groups.

Where a group is over its limit and no page of a file is left to drop, the kernel kills a process in it. So such a limit is a
budget, whether or not somebody named it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from edgespec.runtime.control_groups import memberships
from edgespec.runtime.memory.measure import usage

FILES = {1: ("memory.limit_in_bytes", "total_rss"), 2: ("memory.max", "anon")}
"""By version: the file of the limit, and the name of private memory in memory.stat."""
NO_LIMIT = 2**62  # version 1 writes the largest number of pages


def room() -> int | None:
    """Bytes that this process may have before a group that it belongs to is over its limit, those that it has already included.

    What other processes of the group hold for themselves is taken off. None where there is no limit.
    """
    own = usage().private
    left = [limit - max(0, held - own) for limit, held in _limits()]
    return min(left, default=None)


def _limits() -> Iterator[tuple[int, int]]:
    """Limit and private memory of each group that this process is in, from its own up, where there is a limit. Bytes."""
    for group in memberships("memory"):
        limit_file, held_field = FILES[group.version]
        for folder in group.and_those_around():
            with contextlib.suppress(OSError, ValueError, KeyError):
                limit = int((folder / limit_file).read_text(encoding="ascii"))  # or "max"
                lines = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
                held = int(dict(line.split() for line in lines)[held_field])
                if limit < NO_LIMIT:
                    yield limit, held
