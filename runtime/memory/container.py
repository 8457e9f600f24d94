"""What a container leaves this process: memory limits of Linux control groups, versions 1 and 2.

Where a group is over its limit and no page of a file is left to drop, the kernel kills a process in it. So such a limit is a
budget, whether or not somebody named it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

from edgespec.runtime.memory.measure import usage

MOUNT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
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
    for group in memberships():
        # A container sees its own group as the root of the file system, but may read the path that it has outside.
        for folder in (group.folder, *group.folder.parents):
            with contextlib.suppress(OSError, ValueError, KeyError):
                limit = int((folder / group.limit_file).read_text(encoding="ascii"))  # or "max"
                lines = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
                held = int(dict(line.split() for line in lines)[group.held_field])
                if limit < NO_LIMIT:
                    yield limit, held
            if folder == group.mount:
                break


@dataclasses.dataclass(frozen=True)
class Group:
    """A memory group: its folder, where the first of all is mounted, and the names of its limit and of private memory in memory.stat."""

    folder: Path
    mount: Path
    limit_file: str
    held_field: str


def memberships() -> Iterator[Group]:
    """The memory groups that this process is in: one, or one of each version, of which one has no limits."""
    with contextlib.suppress(OSError):
        for line in MEMBERSHIP.read_text(encoding="utf-8").splitlines():
            _, controllers, name = line.split(":", 2)
            if not controllers:
                yield Group(MOUNT / name.lstrip("/"), MOUNT, "memory.max", "anon")
            elif "memory" in controllers.split(","):
                yield Group(MOUNT / "memory" / name.lstrip("/"), MOUNT / "memory", "memory.limit_in_bytes", "total_rss")
