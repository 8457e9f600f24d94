"""Who uses an engine's models and caches: one at a time, a generation, a measurement, or what gives memory back.

A generation is in nobody's way for longer than a piece of text, and refuses others; what is short is waited for.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from edgespec.errors import UsageError

BUSY = "this engine is generating already; finish or close that generation first"
LOOK_S = 0.02  # how often who waits looks whether a generation has begun


class Turns:
    """Of one engine, for all of its threads.

    Args:
        give_back: frees memory that can be had again; told whether draft models are part of it.
    """

    def __init__(self, give_back: Callable[[bool], None]) -> None:
        self._give_back = give_back
        self._lock = threading.Lock()
        self._running: threading.Event | None = None
        """Set to stop the generation that is running."""
        self._trim_wanted = threading.Event()
        self._drafts_later = False

    @property
    def generating(self) -> bool:
        return self._running is not None

    def check_idle(self) -> None:
        """Refuse, with a ``UsageError``, what cannot be while a generation is running."""
        if self.generating:
            raise UsageError(BUSY)

    @contextlib.contextmanager
    def generation(self, stop: threading.Event) -> Iterator[None]:
        """A generation, which setting ``stop`` ends. It may end in another thread than it began in.

        Raises:
            UsageError: another one is running.
        """
        self._begin()
        self._running = stop
        try:
            yield
        finally:
            self._running = None
            if self._drafts_later:
                self._drafts_later = False
                self._trim_wanted.set()
            self._end()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """What takes little time.

        Raises:
            UsageError: a generation is running.
        """
        self._begin()
        try:
            yield
        finally:
            self._end()

    def stop(self) -> None:
        """End the running generation after its current pass, from any thread."""
        running = self._running
        if running is not None:
            running.set()

    def trim(self) -> None:
        """Give memory back, from any thread: now, or where somebody is at work, then."""
        self._trim_wanted.set()
        self._serve()

    def between_pieces(self) -> None:
        """A generation gives back what it was asked for meanwhile, all but its draft model, which goes when it ends."""
        if self._trim_wanted.is_set():
            self._trim_wanted.clear()
            self._drafts_later = True
            self._give_back(False)

    def _begin(self) -> None:
        while not self._lock.acquire(timeout=LOOK_S):
            self.check_idle()

    def _end(self) -> None:
        self._lock.release()
        self._serve()

    def _serve(self) -> None:
        """A request is made before the lock is tried, and looked for after it is free, so none is overlooked."""
        while self._trim_wanted.is_set() and self._lock.acquire(blocking=False):
            try:
                self._trim_wanted.clear()
                self._give_back(True)
            finally:
                self._lock.release()
