"""EAGLE (Li et al. 2024 a, b, 2025): a head of one decoder layer, fed with the target's hidden states, grows a tree of tokens.

Row j of its cache takes token j + 1 and the feature of token j. For the text these are the target's hidden states, for drafted
tokens the head's own output of the row before. How the tree is grown and which of its nodes are verified is the tree drafter's
(:mod:`edgespec.runtime.drafters.tree`): EAGLE-2's expansion by cumulative probability within measured costs; where the draft is
sure, or one node was asked for, it is a chain.

Where the target's graph has the head's first step in it (:mod:`edgespec.runtime.models.fused`), rows of the text mostly come with
the target's passes, and the logits for the first level of the tree with them. The head's own graph then runs from the second level on,
and for rows that turned out to have taken another token than the text did.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from edgespec.runtime.drafters import Resources, Round
from edgespec.runtime.drafters.first_step import FirstStepUse
from edgespec.runtime.drafters.growth import Growth
from edgespec.runtime.drafters.tree import TokenTree, TreeOptions, options_for
from edgespec.runtime.models.fused import FirstSteps
from edgespec.runtime.models.model import Model
from edgespec.runtime.models.token_map import TokenMap
from edgespec.runtime.sampling.processors import Floats
from edgespec.tree import DraftTree


class EagleCache:
    """The head's KV cache while it grows a tree. Its rows are named by the tokens whose features they take, so a row also depends on
    the token after the one that it is named by.

    Args:
        model: the head.
        features: gives the target's hidden states, [rows of its cache, F].
        token_map: of a reduced vocabulary, None if the head scores the target's.
        steps: the head's rows that passes of the target make, where they do.
        narrow: whether rows of logits keep to the reduced vocabulary: widening one costs as much as choosing from it.

    Attributes:
        vocabulary: number of ids that rows of logits have.
        own_ids: the target's id of each, where these differ.
        apart: whether the head's own graph had to make the logits that the last tree begins with.
    """

    def __init__(
        self,
        model: Model,
        features: Callable[[], Floats],
        token_map: TokenMap | None = None,
        steps: FirstSteps | None = None,
        narrow: bool = False,
    ) -> None:
        self.model = model
        self.steps = steps
        self.own_ids = None
        self.apart = False
        if token_map is not None and narrow:
            self.own_ids, token_map = token_map.ids, None
        self.vocabulary = model.spec.vocab_size if token_map is None else token_map.vocabulary
        self._features = features
        self._token_map = token_map
        self._checked = 0
        """So many rows are known to be of this text."""
        self._settled: int | None = None
        """While a tree grows: so many rows are of the text and took the target's features."""
        self._trunk = 0
        self._parents: list[int] = []
        self._row_of = {-1: -1}

    @property
    def room(self) -> int:
        """Rows that are free."""
        return self.model.capacity - self.model.length

    def start(self, context: Sequence[int]) -> None:
        """A text begins: keep what its prompt shares with the rows."""
        self._checked = 0
        self.follow(context)
        if self.steps is None:
            return
        self.steps.begin(context)
        # Passes add to the rows only while there are as many as of the target. A few that are missing are made up for at once; where most
        # are, it is as well to wait until the head is asked.
        features = self._features()
        if len(features) - self.model.length <= len(context) - len(features):
            self._extend(context, features, len(features))

    def begin(self, context: Sequence[int], vocabulary: int) -> Floats | None:
        """Logits [V] after ``context``; None if it does not fit, has a token from ``vocabulary`` on, or is too short for a feature."""
        model, self.apart = self.model, False
        self.follow(context)
        features = self._features()
        rows = min(len(features), len(context) - 1)
        if rows < 1 or len(context) - 1 > model.capacity or max(context[model.length :]) >= vocabulary:
            return None
        logits = None
        if model.length >= rows:
            model.keep(rows)
            logits = None if self.steps is None else self.steps.logits_of(rows - 1)
        self.apart = logits is None
        if logits is None:
            model.keep(min(model.length, rows - 1))  # The head may have been asked about this very text before.
            logits = self._extend(context, features, rows)
        self._checked = self._settled = rows
        while model.length < len(context) - 1:  # Tokens that no pass of the target has seen yet: a grammar forced them.
            logits = self._run(context, model.length, model.length + 1, model.features[-1:])
        self._trunk, self._parents, self._row_of = model.length, [], {-1: -1}
        assert logits is not None, "there was a row to run, or its logits"
        row: Floats = self._widened(logits)[0]
        return row

    def score(self, growth: Growth, nodes: Sequence[int]) -> Floats:
        """Logits [n, V] after these nodes, whose parents have been scored before; a view that the next pass overwrites."""
        before = []
        for node in nodes:
            parent = self._row_of[growth.parents[node]]
            self._row_of[node] = len(self._parents)
            self._parents.append(parent)
            before.append(self._trunk + parent)  # -1, for the root, is the trunk's last row
        tokens = [growth.tokens[node] for node in nodes]
        own = self.model.features[np.array(before)]
        return self._widened(self.model.run(tokens, range(len(nodes)), self._parents, trunk=self._trunk, features=own))

    def settle(self) -> None:
        """Forget rows with features of the head's own: the text may come to have the same tokens, and its rows are others."""
        if self._settled is not None:
            self.model.keep(min(self._settled, self.model.length))
        self._settled = None

    def follow(self, context: Sequence[int]) -> None:
        """Keep the rows that belong to ``context``: each has to be named by its token, and to have taken the one after it."""
        self.settle()
        model = self.model
        row, most = min(self._checked, model.length), min(model.length, len(context) - 1)
        while row < most and (model.tokens[row], model.taken[row]) == (context[row], context[row + 1]):
            row += 1
        model.keep(row)
        self._checked = row

    def _extend(self, context: Sequence[int], features: Floats, rows: int) -> Floats | None:
        """Make the rows of the text that are missing of the first ``rows``; the logits [1, Vd] of the last, None if none is missing."""
        model, logits = self.model, None
        while model.length < rows:
            start, stop = model.length, min(model.length + model.chunk, rows)
            logits = self._run(context, start, stop, features[start:stop])
        return logits

    def _run(self, context: Sequence[int], start: int, stop: int, features: Floats) -> Floats:
        """Rows ``start`` to ``stop`` of the text; the logits [1, Vd] of the last."""
        logits = self.model.run(context[start + 1 : stop + 1], [stop - start - 1], features=features)
        self.model.tokens[start:] = context[start:stop]
        if self.steps is not None:
            self.steps.forget()
        return logits

    def _widened(self, logits: Floats) -> Floats:
        return logits if self._token_map is None else self._token_map.widen(logits)


class Eagle(TokenTree):
    """Grows the tree with a head in place of a draft model.

    Args:
        use: where passes of the target make the head's first step and costs count, what is known of its use.
    """

    name = "eagle"

    def __init__(self, cache: EagleCache, vocabulary: int, options: TreeOptions, use: FirstStepUse | None = None) -> None:
        super().__init__([cache], vocabulary, options)
        self._cache = cache
        self._use = use
        self._asked = False

    def begin(self, context: Sequence[int]) -> None:
        self._cache.start(context)

    def propose(self, context: Sequence[int], max_tokens: int) -> DraftTree:
        tree = super().propose(context, max_tokens)
        self._cache.settle()  # before the target's pass, which may have rows of the text to add
        self._asked = True
        if self._cache.steps is not None:
            self._cache.steps.wanted = self.off is None
        return tree

    def observe(self, found: Round) -> None:
        super().observe(found)
        steps, use = self._cache.steps, self._use
        if steps is not None and use is not None and self.off is None:
            use.observe(asked=self._asked, apart=self._asked and self._cache.apart, inside=steps.made_by_last_pass)
            steps.wanted = use.pays_behind_others  # unless the head is asked before the next pass
        self._asked = False
        self._cache.follow(found.context)


def make_eagle(resources: Resources) -> Eagle:
    """With the bundle's EAGLE head."""
    (model, *_) = resources.models("eagle")
    token_map = resources.token_map("eagle")
    narrow = resources.plain_guess and token_map is not None and int(token_map.ids.max()) < resources.vocabulary
    cache = EagleCache(model, resources.features("eagle"), token_map, resources.first_steps("eagle"), narrow)
    options, use = options_for(resources, "eagle", [model]), None
    if options.costs is not None and cache.steps is not None:
        use = FirstStepUse(resources.first_ms("eagle"), resources.draft_ms("eagle"))
        options = dataclasses.replace(options, costs=dataclasses.replace(options.costs, first_ms=lambda: use.round_ms))
    return Eagle(cache, resources.vocabulary, options, use)
