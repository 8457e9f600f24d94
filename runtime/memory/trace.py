"""A timeline of this process's memory, sampled by a thread, or when it is told to."""

from __future__ import annotations

import dataclasses
import threading
import time
from types import TracebackType

from edgespec.runtime.memory.measure import Usage, usage

INTERVAL_S = 0.02


@dataclasses.dataclass(frozen=True)
class Sample:
    """Seconds since the trace began, and what was resident then."""

    seconds: float
    usage: Usage


class MemoryTrace:
    """Samples in a ``with`` statement; ``mark`` names a moment.

    Args:
        by_itself: whether a thread samples all the time. It takes time of its own, so measurements of speed only ``take`` a
            sample between two runs.
    """

    def __init__(self, by_itself: bool = True) -> None:
        self.samples: list[Sample] = []
        self.marks: list[tuple[float, str]] = []
        self._started = time.perf_counter()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory-trace", daemon=True) if by_itself else None

    def mark(self, name: str) -> None:
        self.take()
        self.marks.append((time.perf_counter() - self._started, name))

    def __enter__(self) -> MemoryTrace:
        self.take()
        if self._thread:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._done.set()
        if self._thread:
            self._thread.join()
        self.take()

    def _watch(self) -> None:
        while not self._done.wait(INTERVAL_S):
            self.take()

    def take(self) -> None:
        """A sample now."""
        self.samples.append(Sample(time.perf_counter() - self._started, usage()))
