"""Another package's drafter between two checks.

What it does wrong ends the generation with an error that names it: a traceback out of the middle of the loop would look like a
bug of the loop, and a token that does not exist like a broken graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from edgespec.distribution import Distribution
from edgespec.errors import RuntimeFailure
from edgespec.runtime.drafters import Drafter, Resources, Round
from edgespec.runtime.drafters.foreign import reported
from edgespec.tree import DraftTree


class Guarded(Drafter):
    """What ``make`` makes; ``label`` begins the messages."""

    def __init__(self, make: Callable[[Resources], Drafter], resources: Resources, label: str) -> None:
        with reported(label, "cannot be made"):
            drafter = make(resources)
        if not isinstance(drafter, Drafter):
            raise RuntimeFailure(f"{label} made {type(drafter).__name__}, which is no edgespec.runtime.drafters.Drafter")
        self._drafter, self._label, self._vocabulary = drafter, label, resources.vocabulary
        with reported(label, "has no name"):
            self.name = str(drafter.name)  # type: ignore[misc]
        self.reads_choices = drafter.reads_choices  # type: ignore[misc]

    def begin(self, context: Sequence[int]) -> None:
        with reported(self._label, "failed to begin a text"):
            self._drafter.begin(context)

    def propose(self, context: Sequence[int], max_tokens: int) -> DraftTree:
        with reported(self._label, "failed to propose"):
            tree = self._drafter.propose(context, max_tokens)
        if not isinstance(tree, DraftTree):
            raise RuntimeFailure(f"{self._label} proposed {type(tree).__name__}, not a DraftTree")
        if len(tree) > max_tokens:
            raise RuntimeFailure(f"{self._label} proposed {len(tree)} nodes where at most {max_tokens} were asked for")
        for token in tree.tokens:
            if isinstance(token, bool) or not hasattr(token, "__index__") or not 0 <= int(token) < self._vocabulary:
                raise RuntimeFailure(f"{self._label} proposed {token!r}, which is not a token id from 0 to {self._vocabulary - 1}")
        for token, q in zip(tree.tokens, tree.q, strict=False):
            if q is not None and not (isinstance(q, Distribution) and q.probability(token) > 0):
                raise RuntimeFailure(f"{self._label} proposed {token} as drawn from a q that is no Distribution with this token in it")
        return dataclasses.replace(tree, tokens=tuple(map(int, tree.tokens)))  # numpy's numbers are not JSON's

    def observe(self, found: Round) -> None:
        with reported(self._label, "failed to observe a round"):
            self._drafter.observe(found)

    @property
    def passes(self) -> int:
        return self._drafter.passes

    @property
    def run_seconds(self) -> float:
        return self._drafter.run_seconds

    @property
    def off(self) -> str | None:
        return self._drafter.off
