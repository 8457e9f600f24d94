"""Asks several drafters in turn, each with its own number of tokens, and puts to use what costs nothing: what the target said on branches
that could not commit goes first (seeds.py), and rows that would be padding are filled with guesses.

In turn means in the order in which they were named, unless what is known of each says that a later one pays better: then that one
comes first. A drafter without a good guess, such as an n-gram that never occurred, passes the round on to the next."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from edgespec.errors import NO_MEMORY
from edgespec.runtime.drafters import Drafter, Round
from edgespec.runtime.drafters.ngram import NGram
from edgespec.runtime.drafters.seeds import begin_with, seed_of
from edgespec.runtime.tuning.controller import LengthPolicy
from edgespec.runtime.tuning.cost import RunningCosts
from edgespec.tree import DraftTree

GUESS = "guess"  # the drafter of tokens in rows that would have been padding
SEED = "seed"  # and of what the target had said on a branch


@dataclasses.dataclass
class Source:
    """A drafter and who decides how many tokens it proposes."""

    drafter: Drafter
    policy: LengthPolicy
    has_model: bool = False


class Proposer:
    """The first source that has a proposal gives it. No sources is plain decoding.

    A drafter that finds no memory for a pass is dropped and the others go on: it only ever made the text come sooner.

    Args:
        sources: the drafters, in the order in which they are asked.
        branches: whether every branch of a tree may commit tokens.
        costs: hear what passes and drafts took.
        dropped: drafters that were asked for and are not there, and why.
        on_failure: told of a drafter that is dropped, and why.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        branches: bool = True,
        costs: RunningCosts | None = None,
        dropped: Mapping[str, str] | None = None,
        on_failure: Callable[[str, str], None] = lambda _name, _reason: None,
    ) -> None:
        self.sources = tuple(sources)
        self._branches = branches
        self._costs = costs
        self.dropped = dict(dropped or {})
        self._on_failure = on_failure
        # Guesses come from the n-gram drafter's own index when there is one, so that the context is indexed once.
        indexes = [source.drafter for source in self.sources if isinstance(source.drafter, NGram)]
        self._guesser = (indexes[0] if indexes else NGram()) if self.sources else None
        self._asked: Source | None = None
        self._wanted = 0
        self._proposed = 0
        self._known = 0
        self._seed: list[int] = []
        self._led = 0
        """So many nodes of the last proposal were a seed."""
        self._learns = False
        self.seeded = 0
        """Proposed tokens so far that the target had said on a branch."""
        self._passes, self._run_seconds = 0, 0.0  # of sources that were dropped

    def begin(self, context: Sequence[int]) -> None:
        """A text begins; its prompt has not been read yet."""
        for source in self.sources:
            try:
                source.drafter.begin(context)
            except NO_MEMORY as error:
                self.drop(source, error)

    def propose(self, context: Sequence[int], limit: int) -> DraftTree:
        """A tree of at most ``limit`` nodes."""
        tree = self._ask(context, limit)
        self._known, self._proposed = len(context), len(tree)
        self._learns = not self._branches and not tree.is_chain
        return tree

    def _ask(self, context: Sequence[int], limit: int) -> DraftTree:
        self._asked, self._led = None, 0
        seed = self._seed[:limit]
        for source, length in self._in_turn():
            count = min(length, limit)
            if count < 1:
                continue
            if len(seed) >= count:
                break  # No guess is as good.
            tree = self._proposal(source, context, count)
            if not len(tree):
                source.policy.observe(count, 0, 0)
                continue
            self._asked, self._wanted = source, count
            return tree if tree.q else self._lead(tree, seed, count)
        return self._lead(DraftTree(), seed, limit)

    def _lead(self, tree: DraftTree, seed: Sequence[int], most: int) -> DraftTree:
        self._led = len(seed)
        self.seeded += len(seed)
        return begin_with(tree, seed, most)

    def _in_turn(self) -> Iterator[tuple[Source, int]]:
        """The sources with the number of tokens to ask each for, in the order in which to ask."""
        plans = [(source, source.policy.plan()) for source in self.sources]
        if not any(math.isnan(plan.gain) for _, plan in plans):
            plans.sort(key=lambda pair: -pair[1].gain)
        return ((source, plan.length) for source, plan in plans)

    def _timed(self, drafter: Drafter, context: Sequence[int], count: int) -> DraftTree:
        before, started = drafter.passes, time.perf_counter()
        tree = drafter.propose(context, count)
        made = max(len(tree), drafter.passes - before)
        if self._costs is not None and made:
            self._costs.saw_draft(drafter.name, made, time.perf_counter() - started)
        return tree

    def saw_pass(self, width: int, seconds: float, first_step: bool = False) -> None:
        """The target took so long for a pass of ``width`` tokens, with or without a head's first step in it."""
        if self._costs is not None:
            self._costs.saw_pass(width, seconds, first_step)

    def _proposal(self, source: Source, context: Sequence[int], count: int) -> DraftTree:
        try:
            return self._timed(source.drafter, context, count)
        except NO_MEMORY as error:
            self.drop(source, error)
            return DraftTree()

    def fill(self, context: Sequence[int], tree: DraftTree, spare: int) -> DraftTree:
        """``tree`` with up to ``spare`` guesses after a chain; these rows are in the pass anyway."""
        if self._guesser is None or spare < 1 or not tree.is_chain:
            return tree
        guesses = self._guesser.look_up(context, tree.tokens, spare, shortest=1)
        if not guesses:
            return tree
        return DraftTree.chain((*tree.tokens, *guesses), (*tree.q, *[None] * len(guesses)) if tree.q else ())

    @property
    def reads_choices(self) -> bool:
        return self._learns or any(source.drafter.reads_choices for source in self.sources)

    def observe(self, found: Round) -> None:
        """A round is over. Guesses that filled rows, and what was known before, say nothing about the drafter that was asked."""
        if self._asked is not None and not self._led:
            self._asked.policy.observe(self._wanted, self._proposed, sum(node < self._proposed for node in found.path))
        self._seed = seed_of(found, self._known) if self._learns else []
        for source in self.sources:
            try:
                source.drafter.observe(found)
            except NO_MEMORY as error:
                self.drop(source, error)

    def drop(self, source: Source, error: BaseException) -> None:
        """Do without a source, and free what it holds."""
        name, reason = source.drafter.name, f"there is no memory for it ({error or type(error).__name__})"
        self._passes, self._run_seconds = self._passes + source.drafter.passes, self._run_seconds + source.drafter.run_seconds
        self.sources = tuple(other for other in self.sources if other is not source)
        self._asked = None if self._asked is source else self._asked
        self.dropped[name] = reason
        self._on_failure(name, reason)

    def drop_models(self, error: BaseException) -> bool:
        """Do without every drafter that runs a model, since the target needs the memory. False if there is none."""
        with_model = [source for source in self.sources if source.has_model]
        for source in with_model:
            self.drop(source, error)
        return bool(with_model)

    def author(self, node: int) -> str:
        """Name of the drafter that a node of the last tree is from."""
        if node < self._led:
            return SEED
        return self._asked.drafter.name if self._asked is not None and node < self._proposed else GUESS

    @property
    def passes(self) -> int:
        return self._passes + sum(source.drafter.passes for source in self.sources)

    @property
    def run_seconds(self) -> float:
        return self._run_seconds + sum(source.drafter.run_seconds for source in self.sources)

    @property
    def off(self) -> str | None:
        """Why nothing is drafted, if every source is off."""
        reasons = [f"{source.drafter.name}: {reason}" for source in self.sources if (reason := source.policy.off or source.drafter.off)]
        if len(reasons) < len(self.sources):
            return None
        return "; ".join([*reasons, *(f"{name}: {reason}" for name, reason in self.dropped.items())]) or None
