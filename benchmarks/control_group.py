"""A memory control group of Linux for one process: the kernel kills it where it exceeds the limit and has no page of a file to drop."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from edgespec.runtime.control_groups import memberships
from edgespec.runtime.memory.container import FILES


@contextlib.contextmanager
def limited_memory(limit: int) -> Iterator[Callable[[], None]]:
    """A new group below this process's own. What it yields moves the process that calls it there: a ``preexec_fn``.

    Args:
        limit: bytes.

    Raises:
        OSError: this process may make none, or the system has none.
    """
    for group in memberships("memory"):
        with contextlib.suppress(OSError):
            folder = Path(tempfile.mkdtemp(prefix="edgespec-", dir=group.folder))
            break
    else:
        raise PermissionError("no memory control group can be made here")
    try:
        (folder / FILES[group.version][0]).write_text(str(limit), encoding="ascii")
        yield lambda: _join(folder)
    finally:
        folder.rmdir()


def _join(folder: Path) -> None:
    (folder / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
