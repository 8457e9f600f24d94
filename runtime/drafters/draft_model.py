"""A smaller model of the same vocabulary drafts a chain (Leviathan et al. 2023; Chen et al. 2023).

Its tokens are chosen by the sampler: drawn from q, under the penalties, masks and cuts that hold for the target, or the
most likely ones.

It has its own KV cache. What the target accepted is still in it, so a proposal first rolls back to the common prefix, catches
up on what is new in one pass, and then steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from edgespec.distribution import Distribution
from edgespec.runtime.drafters import Drafter, Resources
from edgespec.runtime.drafters.context_window import ContextWindow
from edgespec.runtime.models.model import Model
from edgespec.runtime.sampling.processors import Floats, Text
from edgespec.runtime.sampling.sampling import Candidate, DeadEnd
from edgespec.runtime.tuning.controller import Gate
from edgespec.tree import DraftTree


def most_likely(row: Floats, _text: Text) -> Candidate:
    """The token with the largest logit."""
    return int(row.argmax()), None


class DraftModel(Drafter):
    """Drafts with ``model``; proposes only ids below ``vocabulary``, whatever the draft's own is padded to.

    ``choose`` takes a row of logits [V] and the text before it to a token, and to q if it was drawn. ``gate`` ends a draft whose
    next token would not pay.
    """

    name = "draft"

    def __init__(
        self, model: Model, vocabulary: int, choose: Callable[[Floats, Text], Candidate] = most_likely, gate: Gate | None = None
    ) -> None:
        self._model = model
        self._choose = choose
        self._gate = gate
        self._vocabulary = min(vocabulary, model.spec.vocab_size)
        self._passes_before, self._seconds_before = model.passes, model.run_seconds
        self._agreed: int | None = None
        """So many rows of the cache belong to the context of the last proposal, and so to every later one."""
        self._window = ContextWindow()

    @classmethod
    def of(cls, resources: Resources) -> DraftModel:
        """One for the bundle's draft model."""
        return cls(resources.models("draft")[0], resources.vocabulary, resources.choose, resources.gate)

    @property
    def passes(self) -> int:
        return self._model.passes - self._passes_before

    @property
    def run_seconds(self) -> float:
        return self._model.run_seconds - self._seconds_before

    def read(self, context: Sequence[int]) -> Sequence[int] | None:
        """The context in the draft's own ids, None if it cannot read it yet."""
        return context

    def row(self, logits: Floats) -> Floats:
        """Logits [1, Vd] of the draft as a row over the ids that may be proposed."""
        return logits[0, : self._vocabulary]

    def own_id(self, token: int) -> int:
        """The draft's id of a token, negative if it has none."""
        return token

    def propose(self, context: Sequence[int], max_tokens: int) -> DraftTree:
        count = min(max_tokens, self._model.capacity // 2)
        ids = self.read(context)
        logits = self.catch_up(ids, count) if ids else None
        if logits is None:
            return DraftTree()
        tokens: list[int] = []
        q: list[Distribution | None] = []
        while len(tokens) < count:
            row = self.row(logits)
            try:
                token, drawn_from = self._choose(row, Text(context, tokens))
            except DeadEnd:
                break
            # Bans and a grammar may leave only tokens that the draft does not have. All of them are dropped then, so that
            # whether one is does not depend on which was drawn.
            if self.own_id(token) < 0 or (self._gate is not None and not self._gate.keeps(_confidence(row, drawn_from))):
                break
            tokens.append(token)
            q.append(drawn_from)
            if len(tokens) == count or (self._gate is not None and not self._gate.goes_on()):
                break
            logits = self._model.run([self.own_id(token)], [0])
        return DraftTree.chain(tokens, q if any(found is not None for found in q) else ())

    def catch_up(self, ids: Sequence[int], count: int) -> Floats | None:
        """Logits [1, Vd] after ``ids``, with room for ``count`` tokens more; None if there is no such room, or an id is no token."""
        if count < 1 or count > self._model.capacity // 2:
            return None
        seen, moved = self._window.see(ids, self._model.capacity - count)
        if moved:
            self._agreed = None
        self._roll_back(seen)
        new = list(seen[self._model.length :])
        if max(new) >= self._vocabulary:
            return None
        for start in range(0, len(new), self._model.chunk):
            chunk = new[start : start + self._model.chunk]
            logits = self._model.run(chunk, [len(chunk) - 1])
        self._agreed = self._model.length
        return logits

    def _roll_back(self, context: Sequence[int]) -> None:
        """Keep the rows that agree with the context. One of its tokens at least is left to run, for its logits."""
        if self._agreed is None:
            self._model.keep_common(context)  # The rows may be those of another generation: compare from the start.
            return
        model, known = self._model, min(self._agreed, len(context) - 1)
        while known < min(model.length, len(context) - 1) and model.tokens[known] == context[known]:
            known += 1
        model.keep(known)


def _confidence(row: Floats, q: Distribution | None) -> float:
    """The largest probability among the tokens that may be drafted, from the logits [V] or from what is drawn from."""
    return float(q.weights.max()) if q is not None else 1 / float(np.exp(row - row.max()).sum())
