"""Linux control groups, versions 1 and 2, that this process is in: where a container's limits are."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


@dataclasses.dataclass(frozen=True)
class Group:
    """The folder of a group, where the first of its kind is mounted, and the version (1 or 2), on which its files' names depend."""

    folder: Path
    mount: Path
    version: int

    def and_those_around(self) -> Iterator[Path]:
        """The folders of the group and of those that it is in. What any of them limits is limited for all in it."""
        # A container sees its own group as the root of the file system, but may read the path that it has outside.
        for folder in (self.folder, *self.folder.parents):
            yield folder
            if folder == self.mount:
                break


def memberships(controller: str) -> Iterator[Group]:
    """The groups that this process is in of the controller "memory" or "cpu": one, or one of each version, of which one has no limits."""
    with contextlib.suppress(OSError):
        for line in MEMBERSHIP.read_text(encoding="utf-8").splitlines():
            _, controllers, name = line.split(":", 2)
            if not controllers:
                yield Group(MOUNT / name.lstrip("/"), MOUNT, 2)
            elif controller in controllers.split(","):
                mount = MOUNT / controller
                yield Group(mount / name.lstrip("/"), mount, 1)
