"""Lookahead decoding: the target drafts for itself, without another model (Fu et al. 2024).

A window of W columns and N - 1 levels holds guesses at the tokens to come, which the target improves from pass to pass as in Jacobi
iteration. Column i of level 0 stands i + 1 tokens after the text, level l of it l further on, and what the target says after the last
level ends an n-gram of N tokens for the pool. Up to G n-grams of the pool that begin with the text's last token are verified in
the same pass.

    text   a0  a1  a2  a3      level 0, a chain: the tokens furthest out in the iteration
              \\   \\   \\   \\
               b0  b1  b2  b3  level 1: the target's answers to it; b1 sees a0, a1 and itself
                |   |   |   |
               c0  c1  c2  c3  what it says now: (a0, b0, c0), ... go to the pool, and b and c are the next levels 0 and 1

Which token sees which, and at what position, is that of a tree: level 0 is a chain behind the root and each column hangs below its
token of level 0. The n-grams of the pool are more branches. So there is nothing special about the pass.
"""

from __future__ import annotations

import dataclasses
import random
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

from edgespec.errors import UsageError
from edgespec.runtime.drafters import Drafter, Resources, Round
from edgespec.runtime.drafters.payoff import Payoff
from edgespec.tree import DraftTree

MOST_KEYS = 8192  # first tokens in the pool


@dataclasses.dataclass(frozen=True)
class Window:
    """W columns, n-grams of N tokens, at most G of them verified in a pass. On a CPU every row of the pass costs, so the window
    is small."""

    w: int = 4
    n: int = 3
    g: int = 2

    @property
    def nodes(self) -> int:
        """Most nodes of the tree."""
        return (self.w + self.g) * (self.n - 1)

    def within(self, most: int) -> Window:
        """As much of it as ``most`` nodes allow, a guess at least: the window gives way first, since it only learns."""
        columns = max(most // (self.n - 1), 1)
        g = max(1, min(self.g, columns * self.g // (self.w + self.g)))
        return Window(min(self.w, columns - g), self.n, g)


def check_window(asked: Sequence[int], most: int) -> None:
    """Refuse a window that a pass of ``most`` nodes cannot hold.

    Raises:
        UsageError: with the width that it would need.
    """
    nodes = Window(*asked).nodes
    if nodes > most:
        raise UsageError(
            f"lookahead: W={asked[0]}, N={asked[1]}, G={asked[2]} need a pass of (W + G) x (N - 1) + 1 = {nodes + 1} tokens, and "
            f"this bundle's graph verifies {most + 1}; make them smaller, or export with a larger --max-width"
        )


class Pool:
    """N-grams by their first token: for each the last few different ones, the latest first, and of first tokens those in use."""

    def __init__(self, each: int, most: int = MOST_KEYS) -> None:
        self._each, self._most = each, most
        self._tails: OrderedDict[int, list[tuple[int, ...]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tails)

    def add(self, ngram: Sequence[int]) -> None:
        first, tail = ngram[0], tuple(ngram[1:])
        tails = self._tails.setdefault(first, [])
        self._tails.move_to_end(first)
        if tail in tails:
            tails.remove(tail)
        tails.insert(0, tail)
        del tails[self._each :]
        if len(self._tails) > self._most:
            self._tails.popitem(last=False)

    def after(self, token: int) -> Sequence[tuple[int, ...]]:
        """What followed ``token``."""
        if token in self._tails:
            self._tails.move_to_end(token)
        return self._tails.get(token, ())


class Lookahead(Drafter):
    """One for each generation; a ``pool`` may serve all of a conversation."""

    name = "lookahead"
    reads_choices = True

    def __init__(self, window: Window, pool: Pool | None = None, payoff: Payoff | None = None) -> None:
        self._window = window
        self._pool = Pool(window.g) if pool is None else pool
        self._payoff = payoff or Payoff(None)
        self._levels: list[list[int]] = []
        self._known = 0
        """Tokens of the context whose n-grams are in the pool."""
        self._shown: list[list[int]] = []
        """The columns that the last proposal held, as tokens from the root on."""
        self._nodes = 0
        self._random = random.Random(0)

    def propose(self, context: Sequence[int], max_tokens: int) -> DraftTree:
        self._shown, self._nodes = [], 0
        window = self._window.within(max_tokens)
        if max_tokens < 1 or not self._payoff.pays():
            return DraftTree()
        self._learn(context)
        if not self._levels:
            self._levels = [[self._guess(context) for _ in range(self._window.w)] for _ in range(self._window.n - 1)]
        self._shown = list(self._columns(window.w))
        tree = DraftTree.of_paths([*self._pool.after(context[-1])[: window.g], *self._shown], max_tokens)
        self._nodes = len(tree)
        return tree

    @property
    def off(self) -> str | None:
        return None if self._payoff.pays() else f"its rows cost more than they bring ({self._payoff.gain:.2f} times plain decoding)"

    def observe(self, found: Round) -> None:
        # Of this round: in the next one another drafter may be asked.
        nodes, shown = self._nodes, self._shown
        self._nodes, self._shown = 0, []
        if not nodes:
            self._payoff.rest()
            return
        self._payoff.observe(nodes, len(found.path))
        if found.choices is None:
            return
        said = []
        for column in shown:
            node = found.tree.find(column)
            if node is None:  # something else took its rows
                return
            said.append(int(found.choices[node + 1]))
            self._pool.add([*column[-(self._window.n - 1) :], said[-1]])
        if said:
            self._move_on(said, len(found.context) - self._known - 1, found.context)

    def _columns(self, count: int) -> Iterator[list[int]]:
        for column in range(count):
            yield [*self._levels[0][: column + 1], *(level[column] for level in self._levels[1:])]

    def _move_on(self, said: list[int], skipped: int, context: Sequence[int]) -> None:
        """Level 0 makes way, and the target's answers are the last level. Positions are counted from the text's end, which has moved
        by one token and ``skipped`` more, so as many columns are behind it by now."""
        levels = [*self._levels[1:], said]
        self._levels = []
        for level in levels:
            kept = level[skipped : self._window.w]
            self._levels.append(kept + [self._guess(context) for _ in range(self._window.w - len(kept))])

    def _learn(self, context: Sequence[int]) -> None:
        """The text's own n-grams are in the pool, too."""
        size = self._window.n
        for start in range(max(self._known - size + 1, 0), len(context) - size + 1):
            self._pool.add(context[start : start + size])
        self._known = len(context)

    def _guess(self, context: Sequence[int]) -> int:
        """Any token of the text, for a place that nothing is known of."""
        return context[self._random.randrange(len(context))]


def make_lookahead(resources: Resources) -> Lookahead:
    window = Window(*resources.window) if resources.window is not None else Window()
    kept: dict[str, Any] = resources.kept
    pool = kept.setdefault(f"lookahead {window.n} {window.g}", Pool(window.g))
    last: Payoff | None = resources.learnt.get(Lookahead.name)
    payoff = last.for_another_text(resources.pass_ms) if last else Payoff(resources.pass_ms)
    resources.learnt[Lookahead.name] = payoff
    return Lookahead(window, pool, payoff)
