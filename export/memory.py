"""Giving freed memory back to the system while exporting.

glibc raises, as a program runs, the size from which it maps blocks of their own (up to 32 MB), and keeps smaller ones in
a heap that fragments: torch's intermediate tensors then stay resident long after they are freed. A fixed threshold keeps the peak
near what is in use.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
THRESHOLD = 2**18


def return_freed_memory() -> None:
    """Fix the thresholds of this process's allocator, where it is glibc's, and give back what is free now."""
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(M_MMAP_THRESHOLD, THRESHOLD)
        libc.mallopt(M_TRIM_THRESHOLD, THRESHOLD)
        libc.malloc_trim(0)
