"""What a generation does when a pass of the target finds no memory, although the plan said that there would be some.

First everything is freed that a text can do without: draft models, rows of conversations that wait, what the heap holds. If
that is not enough, passes get narrower, by halves, down to the narrowest that gives the same text. A pass that failed left no
row valid, so it is simply made again, and the text is the one that it would have been.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger(__name__)

NO_LIMIT = 2**30


class Relief:
    """Of one generation.

    Args:
        free: frees what can be done without; is told the error, and returns what it freed, in words.
        said: what was done is added to it, in words.
    """

    def __init__(self, free: Callable[[BaseException], str] = lambda _error: "", said: list[str] | None = None) -> None:
        self.widest = NO_LIMIT
        """Passes may have at most so many tokens."""
        self._free: Callable[[BaseException], str] | None = free
        self._said = [] if said is None else said

    def give_way(self, width: int, narrowest: int, error: BaseException) -> None:
        """A pass of ``width`` tokens found no memory: make room, so that it, or a narrower one, can be tried.

        Raises:
            OutOfMemory, MemoryError: ``error``, since nothing is left to do.
        """
        if self._free is not None:
            free, self._free = self._free, None
            self._say(f"{free(error) or 'freed memory'}, since a pass of {width} tokens found none")
        elif width > narrowest:
            self.widest = max(narrowest, width // 2)
            self._say(f"passes of at most {self.widest} tokens, since one of {width} found no memory")
        else:
            raise error

    def _say(self, text: str) -> None:
        log.warning("%s", text)
        self._said.append(text)
