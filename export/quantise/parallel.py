"""Rows are quantised independently, so they are shared out among the cores.

torch's own threads would wait for each other after every one of thousands of small operations; here each core works
through rows of its own with one thread (the number of threads of torch is a property of the thread that sets it).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")


@functools.lru_cache(maxsize=1)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "quantise", initializer=torch.set_num_threads, initargs=(1,))


def by_rows(work: Callable[[torch.Tensor], T], matrix: torch.Tensor, at_once: int) -> list[T]:
    """``work`` on at most ``at_once`` rows at a time, the results in order."""
    threads = torch.get_num_threads()
    rows = max(1, min(at_once, -(-len(matrix) // threads)))
    return list(_pool(threads).map(work, torch.split(matrix, rows)))
