"""Prompt look-up: propose what followed when the text's last few tokens occurred before (Saxena 2023), in the text or in a corpus.

Good where a text repeats itself, its prompt or the corpus: summaries, code, edits, answers to the same questions. It costs microseconds,
so a miss costs nothing.

Occurrences of the longest match are followed. Where they go different ways the most frequent comes first, and of equally
frequent ones the latest; the others are branches. Longer matches weigh more, and are more often right: one of n tokens is taken to
be right with n / (n + 1), as in the rule of succession.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence

from edgespec.runtime.drafters import Drafter, Resources
from edgespec.runtime.drafters.corpus import Corpus
from edgespec.runtime.drafters.growth import Growth
from edgespec.runtime.drafters.matches import LONGEST, TextIndex
from edgespec.runtime.tuning.controller import Gate
from edgespec.tree import DraftTree

SHORTEST = 2  # tokens that a proposal has to rest on
CORPUS_WEIGHT = 0.5  # of what followed in the corpus against what followed in the text itself

Continuation = tuple[Sequence[int], float]
"""Tokens that followed an occurrence, and its weight."""


class NGram(Drafter):
    """Knows the n-grams of the context, and of a ``corpus`` if there is one. ``gate`` ends a proposal whose next token would not pay;
    ``branches`` says whether every branch of a tree may commit."""

    name = "ngram"

    def __init__(self, corpus: Corpus | None = None, gate: Gate | None = None, branches: bool = True) -> None:
        self._index = TextIndex()
        self._corpus = corpus
        self._gate = gate
        self._branches = branches

    @classmethod
    def of(cls, resources: Resources) -> NGram:
        return cls(resources.corpus, resources.gate, resources.branches)

    def propose(self, context: Sequence[int], max_tokens: int) -> DraftTree:
        if max_tokens < 1:
            return DraftTree()
        self._index.extend(context)
        matches = self._index.matches(context, SHORTEST)
        if self._corpus is not None:
            matches += self._corpus.matches(context, max(matches[0].length if matches else 0, SHORTEST))
        if not matches:
            return DraftTree()
        longest = max(match.length for match in matches)
        found = [
            (copy(match.where, (), match.position, max_tokens), match.length**2 * (1.0 if match.where is context else CORPUS_WEIGHT))
            for match in matches
        ]
        growth = Growth(self._branches)
        grow(growth, found, longest, max_tokens)
        return self._gated(growth)

    def _gated(self, growth: Growth) -> DraftTree:
        """What pays: the first path as far as the gate lets it, and of the rest what is worth as much as the path's last node."""
        nodes, first = range(len(growth)), growth.first_path
        if self._gate is None:
            return growth.tree(nodes)
        kept = 0
        for node in first:
            if not self._gate.keeps(growth.chance(node)):
                break
            kept += 1
        if not kept:
            return DraftTree()
        least = growth.values[first[kept - 1]]
        return growth.tree([node for node in nodes if node in first[:kept] or (node not in first and growth.values[node] >= least)])

    def look_up(self, context: Sequence[int], ahead: Sequence[int], count: int, shortest: int) -> list[int]:
        """Up to ``count`` tokens to follow ``context`` and the guessed tokens ``ahead`` of it: what came the last time after the longest
        n-gram, down to ``shortest`` tokens, that occurred in the context before."""
        if count < 1:
            return []
        self._index.extend(context)
        position = self._index.latest([*context[-LONGEST:], *ahead][-LONGEST:], shortest)
        return [] if position is None else copy(context, ahead, position, count)


def copy(text: Sequence[int], ahead: Sequence[int], position: int, count: int) -> list[int]:
    """The ``count`` tokens of ``text`` from ``position`` on. Where they run into its end they go on with the guess itself, so a loop in the
    text is proposed as a loop."""
    more = list(ahead)
    for index in range(position, position + count):
        more.append(int(text[index]) if index < len(text) else more[index - len(text)])
    return more[len(ahead) :]


def grow(growth: Growth, continuations: Sequence[Continuation], longest: int, count: int) -> None:
    """Add the ``count`` most valuable nodes of the tree that the continuations make.

    The chance of a token is its share of the weight of all that got there, times that of a match of ``longest`` tokens being right,
    which gets better with every token that is.
    """
    heap: list[tuple[float, int, int, int, float, list[Continuation]]] = []
    depths = {-1: 0}

    def offer(parent: int, members: Sequence[Continuation]) -> None:
        depth = depths[parent]
        right = (longest + depth) / (longest + depth + 1)
        groups: dict[int, list[Continuation]] = {}
        for tokens, weight in members:
            if depth < len(tokens):
                groups.setdefault(tokens[depth], []).append((tokens, weight))
        weights = {token: sum(weight for _, weight in group) for token, group in groups.items()}
        total = sum(weights.values())
        # Sorting is stable, and the latest occurrence is first.
        for rank, token in enumerate(sorted(groups, key=lambda token: -weights[token])):
            chance = right * weights[token] / total
            value = growth.value_of(parent, chance) if rank == 0 else growth.side_value_of(parent, chance)
            heapq.heappush(heap, (-value, next(order), parent, token, chance, groups[token]))

    order = itertools.count()  # among equals the first that was offered
    offer(-1, continuations)
    while heap and len(growth) < count:
        _, _, parent, token, chance, group = heapq.heappop(heap)
        node = growth.add(parent, token, chance)
        depths[node] = depths[parent] + 1
        offer(node, group)
