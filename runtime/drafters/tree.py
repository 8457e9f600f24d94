"""A tree of tokens from one or several draft models, level by level (Miao et al. 2024, SpecInfer).

A pass of the drafts scores a level of the tree, and the tokens that they find likely behind each node are the next level.
Several drafts are merged at each node: a token counts with the mean of their probabilities, which is also what is drawn from.

Which nodes there are depends on how tokens are accepted:

* tokens that are chosen: the tree grows where the drafts are sure, one level after the other while that pays, and in the end
  the nodes of most value are verified (Wang et al. 2024, OPT-Tree);
* tokens that are drawn, for multi-step speculative sampling: none that was drawn may be dropped, so the shape is settled
  before, from the chances that a first, second, ... candidate had so far (Chen et al. 2024, Sequoia).
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable, Sequence
from typing import Protocol

from edgespec.runtime.drafters import Drafter, Resources, Round
from edgespec.runtime.drafters.chances import Chances
from edgespec.runtime.drafters.growth import Growth, most_per_millisecond
from edgespec.runtime.drafters.tree_cache import TreeCache
from edgespec.runtime.models.model import Model
from edgespec.runtime.sampling.processors import Floats, Ids, Text
from edgespec.runtime.sampling.sampling import DeadEnd, Guess
from edgespec.runtime.tuning.controller import LEAST_GAIN
from edgespec.tree import DraftTree

CANDIDATES = 4  # most children of a node

Guesser = Callable[[Sequence[Floats], Text, int], Sequence[Guess]]
"""From a row of logits [V] of each draft and the text before it to several tokens."""


@dataclasses.dataclass(frozen=True)
class TreeCosts:
    """Milliseconds of a target pass of so many tokens, and of all drafts for a level of one node; ``first_ms`` says it of the first
    level, where that is another."""

    pass_ms: Callable[[int], float]
    level_ms: float
    first_ms: Callable[[], float] | None = None

    def chain(self, depth: int) -> float:
        """Levels of one node each."""
        first = self.level_ms if self.first_ms is None else self.first_ms()
        return first + (depth - 1) * self.level_ms

    def level(self, nodes: int) -> float:
        """A level of several nodes, taken to cost in proportion to the target's passes."""
        return self.level_ms * self.pass_ms(nodes) / self.pass_ms(1)


@dataclasses.dataclass(frozen=True)
class TreeOptions:
    """``draws``: whether ``guess`` draws its tokens. ``branches``: whether every branch of a tree may commit. Without ``costs``
    the tree has as many nodes as it may have, with them as many as pay. ``chances`` are those of a text before."""

    guess: Guesser
    draws: bool = False
    branches: bool = True
    costs: TreeCosts | None = None
    chances: Chances = dataclasses.field(default_factory=Chances)


class Cache(Protocol):
    """The rows of one draft. ``vocabulary`` is the number of ids that it scores, ``room`` the number of rows that are free."""

    model: Model

    @property
    def vocabulary(self) -> int: ...

    @property
    def own_ids(self) -> Ids | None:
        """The target's id of each that it scores, where these differ. There is one draft only then, and nothing is drawn."""

    @property
    def room(self) -> int: ...

    def begin(self, context: Sequence[int], vocabulary: int) -> Floats | None:
        """Logits [V] after ``context``; None if it does not fit or has a token from ``vocabulary`` on."""

    def score(self, growth: Growth, nodes: Sequence[int]) -> Floats:
        """Logits [n, V] after these nodes, whose parents have been scored before; a view that the next pass overwrites."""
        ...


class TokenTree(Drafter):
    """Drafts with the models of ``caches``; proposes only ids below ``vocabulary``, whatever the drafts' own are padded to."""

    name = "tree"

    def __init__(self, caches: Sequence[Cache], vocabulary: int, options: TreeOptions) -> None:
        self._caches = tuple(caches)
        self._ids = caches[0].own_ids
        self._columns = min(cache.vocabulary for cache in caches)
        """Of rows of logits, those that count."""
        self._vocabulary = vocabulary
        if self._ids is None:
            self._columns = self._vocabulary = min(vocabulary, self._columns)
        self._options = options
        self._chances = options.chances
        self._before = [(cache.model.passes, cache.model.run_seconds) for cache in caches]
        self._grown: tuple[Growth, list[float], int] | None = None
        """The last tree, the draft's probabilities of its nodes, and the length of its context."""
        self._rests = False

    @property
    def passes(self) -> int:
        return sum(cache.model.passes - passes for cache, (passes, _) in zip(self._caches, self._before, strict=True))

    @property
    def run_seconds(self) -> float:
        return sum(cache.model.run_seconds - seconds for cache, (_, seconds) in zip(self._caches, self._before, strict=True))

    @property
    def off(self) -> str | None:
        if not self._rests:
            return None
        return f"with {self._chances.by_rank[0]:.0%} of first guesses right, no tree gains {LEAST_GAIN - 1:.0%} over plain decoding"

    def observe(self, found: Round) -> None:
        if self._grown is None:
            self._chances.rest()
            return
        growth, probabilities, known = self._grown
        self._chances.observe(DraftTree(tuple(growth.tokens), tuple(growth.parents)), probabilities, found.context[known:])
        self._grown = None

    def propose(self, context: Sequence[int], max_tokens: int) -> DraftTree:
        options = self._options
        if max_tokens < 1:
            return DraftTree()
        plan, count, rate = shape(self._chances.by_rank, max_tokens, options.branches, options.costs)
        self._rests = options.costs is not None and rate * options.costs.pass_ms(1) < LEAST_GAIN
        if self._rests:
            return DraftTree()
        found = [cache.begin(context, self._vocabulary) for cache in self._caches]
        rows = [row[: self._columns] for row in found if row is not None]
        if len(rows) < len(found):
            return DraftTree()
        growth = Growth(options.branches)
        probabilities: list[float] = []
        if options.draws:
            self._draw(context, rows, growth, probabilities, plan, count)
            nodes = list(range(len(growth)))
        else:
            nodes = self._choose(context, rows, growth, probabilities, max_tokens)
        self._grown = growth, probabilities, len(context)
        return growth.tree(nodes)

    def _choose(self, context: Sequence[int], rows: list[Floats], growth: Growth, probabilities: list[float], most: int) -> list[int]:
        """Grow where the draft is sure of itself; the nodes to verify. What the first level took is spent, whatever is chosen."""
        costs, first = self._options.costs, self._chances.by_rank[0]
        level, scored, spent = [-1], {-1}, 0.0
        found = [rows]
        while True:
            for node, node_rows in zip(level, found, strict=True):
                for guess in self._guesses(node_rows, Text(context, growth.path(node)), min(CANDIDATES, most)):
                    token = guess.token if self._ids is None else int(self._ids[guess.token])
                    growth.add(node, token, self._chances.of(guess.probability))
                    probabilities.append(guess.probability)
            best = growth.best(most)
            values = [growth.values[node] for node in best]
            # A child enters the tree if it is of more value than the last node that is in it.
            least = values[-1] if len(best) == most else 0.0
            level = [node for node in best if node not in scored and growth.values[node] * first > least]
            count, rate = most_per_millisecond(values, costs.pass_ms, spent) if costs else (len(best), 0.0)
            if costs:
                level = [node for node in level if node in best[:count]]
                gain = sum(growth.values[node] for node in level) * first
                spent += costs.level(max(len(level), 1))
                if (1 + sum(values[:count]) + gain) / (costs.pass_ms(1 + count + len(level)) + spent) <= rate:
                    return best[:count]
            if not level or min(cache.room for cache in self._caches) < len(level):
                return best[:count]
            level.sort()
            scored.update(level)
            found = self._score(growth, level)

    def _draw(
        self, context: Sequence[int], rows: list[Floats], growth: Growth, probabilities: list[float], plan: Growth, count: int
    ) -> None:
        """Draw a tree of the shape of the first ``count`` nodes of ``plan``."""
        wanted: dict[int, list[int]] = {}
        for slot in range(count):
            wanted.setdefault(plan.parents[slot], []).append(slot)
        level, found = [(-1, -1)], [rows]  # pairs of a place in the plan and the node that was drawn for it
        while level:
            grown: list[tuple[int, int]] = []
            for (slot, node), node_rows in zip(level, found, strict=True):
                guesses = self._guesses(node_rows, Text(context, growth.path(node)), len(wanted[slot]))
                for child, guess in zip(wanted[slot], guesses, strict=False):
                    grown.append((child, growth.add(node, guess.token, self._chances.by_rank[plan.tokens[child]], guess.q)))
                    probabilities.append(guess.probability)
            level = [pair for pair in grown if pair[0] in wanted]
            if not level or min(cache.room for cache in self._caches) < len(level):
                return
            found = self._score(growth, [node for _, node in level])

    def _guesses(self, rows: list[Floats], text: Text, count: int) -> Sequence[Guess]:
        """At most ``count``; none where bans and a grammar leave no token."""
        try:
            return self._options.guess(rows, text, count)
        except DeadEnd:
            return ()

    def _score(self, growth: Growth, nodes: Sequence[int]) -> list[list[Floats]]:
        """For each node the rows of all drafts."""
        scored = [cache.score(growth, nodes)[:, : self._columns] for cache in self._caches]
        return [[logits[index] for logits in scored] for index in range(len(nodes))]


def make_token_tree(resources: Resources) -> TokenTree:
    """With all draft models of the bundle."""
    models = resources.models("draft")
    caches = [TreeCache(model) for model in models]
    return TokenTree(caches, resources.vocabulary, options_for(resources, "draft", models))


def options_for(resources: Resources, kind: str, models: Sequence[Model]) -> TreeOptions:
    """With the models of a kind; without costs where a number of nodes was asked for. Where tokens are chosen, with what the last
    text has shown; drawn ones depend on the tree's shape, and a seed has to repeat them."""
    usual = [model.spec.accuracy[0][0] for model in models if model.spec.accuracy]
    chances = Chances(max(usual, default=None))
    if not resources.draws:
        last: Chances | None = resources.learnt.get(kind)
        resources.learnt[kind] = chances = last.for_another_text() if last else chances
    costs = None if resources.pass_ms is None else TreeCosts(resources.pass_ms, len(models) * resources.draft_ms(kind))
    return TreeOptions(resources.guess, resources.draws, resources.branches, costs, chances)


def shape(by_rank: Sequence[float], most: int, branches: bool, costs: TreeCosts | None) -> tuple[Growth, int, float]:
    """The tree of most value where chances depend on a node's rank among its siblings alone.

    Returns the tree, whose tokens are ranks and whose nodes are in order of value; how many of the first of them pay, all without
    ``costs``; and the tokens per millisecond that are expected of these.
    """
    growth = Growth(branches)
    heap = [(-by_rank[0], -1, 0)]
    depths: list[int] = []
    best, rate, tokens, depth = 0, 1.0 / costs.pass_ms(1) if costs else 0.0, 1.0, 0
    while len(growth) < most:
        _, parent, rank = heapq.heappop(heap)
        node = growth.add(parent, rank, by_rank[rank])
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
        tokens, depth = tokens + growth.values[node], max(depth, depths[node])
        if costs is not None:
            found = tokens / (costs.pass_ms(2 + node) + costs.chain(depth))
            best, rate = (node + 1, found) if found > rate else (best, rate)
        heapq.heappush(heap, (-growth.value_of(node, by_rank[0]), node, 0))
        if rank + 1 < len(by_rank):
            heapq.heappush(heap, (-growth.value_of(parent, by_rank[rank + 1]), parent, rank + 1))
    return growth, best if costs else most, rate
