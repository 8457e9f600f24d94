"""How much memory this process takes, as its operating system counts it.

    resident   pages in main memory, of which some are
    private    this process's own and not to be had back without swap: heaps, caches, packed weights
    evictable  clean pages of mapped files, which the system drops when it needs room and reads again later
    peak       the most that was resident so far

Linux and Android tell all of it (/proc), macOS through task_info, Windows through GetProcessMemoryInfo. What a
system does not tell is 0.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import mmap
import sys
from pathlib import Path
from typing import Any

import numpy.typing as npt

TASK_VM_INFO = 22  # macOS, mach/task_info.h
MADV_DONTNEED = 4  # Linux, sys/mman.h
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc, malloc.h


@dataclasses.dataclass(frozen=True)
class Usage:
    """Bytes, see the module."""

    resident: int
    private: int
    evictable: int
    peak: int

    def as_dict(self) -> dict[str, int]:
        """In plain JSON types."""
        parts = {"resident_bytes": self.resident, "private_bytes": self.private, "evictable_bytes": self.evictable}
        return {**parts, "peak_rss_bytes": self.peak}


def usage() -> Usage:
    """What this process takes now, and its peak so far."""
    if sys.platform == "darwin":
        return _of_macos()
    if sys.platform == "win32":
        return _of_windows()
    return _of_linux()


def peak_rss_bytes() -> int:
    """Most memory this process has had resident so far."""
    # Not getrusage on Linux: its maximum is inherited from the process that started this one.
    return _status().get("VmHWM", 0) if sys.platform.startswith("linux") else usage().peak


def return_freed_memory(threshold: int | None = None) -> None:
    """Give memory that is free in this process's heap back to the system, where its allocator is glibc's.

    Args:
        threshold: from now on blocks of so many bytes are mapped on their own, and so go back when they are freed. glibc
            otherwise raises the size from which it does so as a program runs, up to 32 MB.
    """
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL("libc.so.6")
        if threshold is not None:
            libc.mallopt(M_MMAP_THRESHOLD, threshold)
            libc.mallopt(M_TRIM_THRESHOLD, threshold)
        libc.malloc_trim(0)


def discard(array: npt.NDArray[Any]) -> None:
    """Give the whole pages inside a contiguous ``array``, which lies in a private mapping without a file, back to the system.

    They are zeros afterwards. Where the system is not Linux nothing happens.
    """
    start = -(-array.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    size = (array.ctypes.data + array.nbytes - start) // mmap.PAGESIZE * mmap.PAGESIZE
    if not sys.platform.startswith("linux") or size <= 0:
        return
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        libc.madvise(start, size, MADV_DONTNEED)


def _of_linux() -> Usage:
    status = _status()
    rollup = _fields(Path("/proc/self/smaps_rollup"))
    resident = rollup.get("Rss") or status.get("VmRSS", 0)
    private = rollup.get("Anonymous", status.get("RssAnon", 0))  # not the dirty pages: a file that was just written has some, too
    return Usage(resident, private, max(0, resident - private), status.get("VmHWM", 0))


def _status() -> dict[str, int]:
    return _fields(Path("/proc/self/status"))


def _fields(path: Path) -> dict[str, int]:
    """The lines ``Name:  123 kB`` of a file, in bytes; nothing where there is no such file."""
    found = {}
    with contextlib.suppress(OSError):
        for line in path.read_text(encoding="ascii", errors="replace").splitlines():
            name, _, value = line.partition(":")
            words = value.split()
            if len(words) == 2 and words[1] == "kB" and words[0].isdecimal():
                found[name] = int(words[0]) * 1024
    return found


class _TaskVmInfo(ctypes.Structure):
    """The head of macOS's task_vm_info_data_t, as far as phys_footprint; fields of 64 bits are packed to 4."""

    _pack_ = 4
    _fields_ = [
        ("virtual_size", ctypes.c_uint64),
        ("region_count", ctypes.c_int32),
        ("page_size", ctypes.c_int32),
        ("resident_size", ctypes.c_uint64),
        ("resident_size_peak", ctypes.c_uint64),
        *((name, ctypes.c_uint64) for name in ("device", "device_peak", "internal", "internal_peak", "external", "external_peak")),
        *((name, ctypes.c_uint64) for name in ("reusable", "reusable_peak", "volatile_pmap", "volatile_resident", "volatile")),
        *((name, ctypes.c_uint64) for name in ("compressed", "compressed_peak", "compressed_lifetime", "phys_footprint")),
    ]


def _of_macos() -> Usage:
    info = _TaskVmInfo()
    count = ctypes.c_uint32(ctypes.sizeof(info) // 4)
    with contextlib.suppress(OSError, AttributeError):
        system = ctypes.CDLL(None)
        task = ctypes.c_uint32.in_dll(system, "mach_task_self_")
        system.task_info(task, TASK_VM_INFO, ctypes.byref(info), ctypes.byref(count))
    resident = info.resident_size
    return Usage(resident, info.phys_footprint, info.external, info.resident_size_peak)


class _ProcessMemoryCounters(ctypes.Structure):
    """Windows' PROCESS_MEMORY_COUNTERS_EX."""

    _fields_ = [
        ("cb", ctypes.c_uint32),
        ("PageFaultCount", ctypes.c_uint32),
        *((name, ctypes.c_size_t) for name in ("PeakWorkingSetSize", "WorkingSetSize", "QuotaPeakPagedPoolUsage", "QuotaPagedPoolUsage")),
        *((name, ctypes.c_size_t) for name in ("QuotaPeakNonPagedPoolUsage", "QuotaNonPagedPoolUsage", "PagefileUsage")),
        *((name, ctypes.c_size_t) for name in ("PeakPagefileUsage", "PrivateUsage")),
    ]


def _of_windows() -> Usage:
    counters = _ProcessMemoryCounters()
    counters.cb = ctypes.sizeof(counters)
    with contextlib.suppress(OSError, AttributeError):
        kernel = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined,unused-ignore]
        kernel.GetCurrentProcess.restype = ctypes.c_void_p
        read = kernel.K32GetProcessMemoryInfo
        read.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32]
        read(kernel.GetCurrentProcess(), ctypes.byref(counters), counters.cb)
    private = min(counters.PrivateUsage, counters.WorkingSetSize)
    return Usage(counters.WorkingSetSize, private, counters.WorkingSetSize - private, counters.PeakWorkingSetSize)
