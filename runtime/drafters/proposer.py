"""Asks several drafters in turn, each with its own number of tokens, and puts to use what costs nothing: what the target said on branches
that could not commit goes first (seeds.py), and rows that would be padding are filled with guesses."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from edgespec.runtime.controller import LengthPolicy
from edgespec.runtime.drafters import Drafter, Round
from edgespec.runtime.drafters.ngram import NGram
from edgespec.runtime.drafters.seeds import begin_with, seed_of
from edgespec.tree import DraftTree


@dataclasses.dataclass
class Source:
    """A drafter and who decides how many tokens it proposes."""

    drafter: Drafter
    policy: LengthPolicy


class Proposer:
    """The first source that has a proposal gives it: the cheap ones are asked first. No sources is plain decoding.

    ``branches`` says whether every branch of a tree may commit tokens.
    """

    def __init__(self, sources: Sequence[Source], branches: bool = True) -> None:
        self.sources = tuple(sources)
        self._branches = branches
        # Guesses come from the n-gram drafter's own index when there is one, so that the context is indexed once.
        indexes = [source.drafter for source in self.sources if isinstance(source.drafter, NGram)]
        self._guesser = (indexes[0] if indexes else NGram()) if self.sources else None
        self._asked: Source | None = None
        self._proposed = 0
        self._known = 0
        self._seed: list[int] = []
        self._learns = False
        self.seeded = 0
        """Proposed tokens so far that the target had said on a branch."""

    def propose(self, context: Sequence[int], limit: int) -> DraftTree:
        """A tree of at most ``limit`` nodes."""
        tree = self._ask(context, limit)
        self._known, self._proposed = len(context), len(tree)
        self._learns = not self._branches and not tree.is_chain
        return tree

    def _ask(self, context: Sequence[int], limit: int) -> DraftTree:
        self._asked = None
        for source in self.sources:
            count = min(source.policy.length(), limit)
            if count < 1:
                continue
            seed = self._seed[:limit]
            tree = source.drafter.propose(context, count) if len(seed) < count else DraftTree()
            if not len(tree) and not seed:
                continue
            self._asked = source
            if not seed or tree.q:
                return tree
            self.seeded += len(seed)
            return begin_with(tree, seed, max(count, len(seed)))
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
        """A round is over; guesses that filled rows say nothing about the drafter that was asked."""
        if self._asked is not None:
            self._asked.policy.observe(self._proposed, sum(node < self._proposed for node in found.path))
        self._seed = seed_of(found, self._known) if self._learns else []
        for source in self.sources:
            source.drafter.observe(found)

    @property
    def passes(self) -> int:
        return sum(source.drafter.passes for source in self.sources)

    @property
    def run_seconds(self) -> float:
        return sum(source.drafter.run_seconds for source in self.sources)

    @property
    def off(self) -> str | None:
        """Why nothing is drafted, if every source is off."""
        reasons = [f"{source.drafter.name}: {reason}" for source in self.sources if (reason := source.policy.off)]
        return "; ".join(reasons) if reasons and len(reasons) == len(self.sources) else None
