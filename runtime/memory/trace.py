"""A timeline of this process's memory, sampled by a thread."""

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
    """Samples in a ``with`` statement; ``mark`` names a moment."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.marks: list[tuple[float, str]] = []
        self._started = time.perf_counter()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory-trace", daemon=True)

    def mark(self, name: str) -> None:
        self._take()
        self.marks.append((time.perf_counter() - self._started, name))

    def __enter__(self) -> MemoryTrace:
        self._take()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()
        self._take()

    def _watch(self) -> None:
        while not self._done.wait(INTERVAL_S):
            self._take()

    def _take(self) -> None:
        self.samples.append(Sample(time.perf_counter() - self._started, usage()))
