"""How many cores this process may use."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from edgespec.runtime.control_groups import memberships


def default_threads() -> int:
    """Cores that this process may use. What taskset or a container allows counts, and two threads of one core count once:
    they share the arithmetic units that a pass keeps busy."""
    affinity = getattr(os, "sched_getaffinity", None)
    cpus = sorted(affinity(0)) if affinity else list(range(os.cpu_count() or 1))
    cores = {_siblings(cpu) for cpu in cpus}
    return max(1, min(len(cores), _quota()))


def _siblings(cpu: int) -> str:
    """The CPUs that share a core with this one, as Linux lists them; itself where the system does not tell."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return str(cpu)


def _quota() -> int:
    """Whole CPUs that a container's time limit amounts to, at least 1; many where there is none."""
    return max(1, min(map(int, _quotas()), default=2**16))


def _quotas() -> Iterator[float]:
    """CPUs' worth of time that each control group around this process is given, where that is limited."""
    for group in memberships("cpu"):
        files = ("cpu.max",) if group.version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        for folder in group.and_those_around():
            with contextlib.suppress(OSError, ValueError):  # no files, or "max"
                quota, period = (int(word) for file in files for word in (folder / file).read_text(encoding="ascii").split())
                if quota > 0:  # -1 where there is no limit
                    yield quota / period
