"""Samplers: callables from a row of logits to a token, made by a factory so that the loop has no options.

A sampler is asked at every row of a verified tree, in order, with the drafted tokens that stand behind the row. Its
answer is a draw from the target's distribution p, whichever tokens were drafted; one that equals a drafted token accepts
it. Two rules give such draws:

* **match**: draw from p and see whether the draft says the same. Right for every drafter, also one that cannot state its
  distribution q. One random number is used per token, so a seed gives the same text with and without speculation.
* **ratio**: a token x drawn from q is accepted with probability min(1, p(x) / q(x)), and after a refusal p becomes
  norm(max(0, p - q)) (Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2). It accepts with probability
  sum(min(p, q)), the most that a single draw from q allows. Several candidates at a node are tried one after the other
  (SpecInfer's multi-step speculative sampling, Miao et al. 2024, algorithm 3). Candidates drawn without replacement go by
  the same rule, each with the q that it was drawn from, which is the one before less what was drawn (recursive rejection
  sampling: Yang et al. 2024, Jeon et al. 2024); no candidate is then wasted on a repetition.

A third rule does not: **typical** takes a candidate that p does not find unlikely (Medusa: Cai et al. 2024, section 2.3.1). It accepts
more, and the text is no longer a draw from p.

A candidate that was chosen and not drawn has q = 1 at its token, and both rules then accept it with probability p(x).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from edgespec.distribution import Distribution
from edgespec.errors import RuntimeFailure, UsageError
from edgespec.runtime.options import GenerationOptions
from edgespec.runtime.sampling import processors
from edgespec.runtime.sampling.processors import Cut, Edit, Floats, Ids, Text, Weights

Candidate = tuple[int, Distribution | None]
"""A drafted token and the distribution it was drawn from, None if it was chosen."""


class DeadEnd(UsageError):
    """Bans and a grammar leave no token at a place. On a path that a draft only supposes this ends the path."""


class Guess(NamedTuple):
    """One of several drafted tokens for a place, what it was drawn from (None if it was chosen), and how likely the draft thinks it is."""

    token: int
    q: Distribution | None
    probability: float


NO_TEXT = Text()
TYPICAL_EPSILON, TYPICAL_DELTA = 0.09, 0.3  # as in the paper
LARGE_KEPT = 16384  # probabilities of more tokens stay in float32, in which they were computed


class Chooser(Protocol):
    """What :func:`edgespec.runtime.accept.accept` asks for a token."""

    def __call__(self, row: Floats, text: Text = ..., candidates: Sequence[Candidate] = ..., /) -> int: ...


def greedy(row: Floats, _text: Text = NO_TEXT, _candidates: Sequence[Candidate] = (), /) -> int:
    """The most likely token, the lowest id among equals."""
    token = int(row.argmax())  # argmax prefers a NaN to any number, so looking at its choice finds every NaN
    if not math.isfinite(row[token]):
        raise RuntimeFailure("the target's logits are not finite (NaN or infinity): the bundle's weights are damaged or overflow")
    return token


def make_sampler(
    options: GenerationOptions, *, prompt_length: int = 0, eos_ids: Sequence[int] = (), grammar: Grammar | None = None
) -> Sampler:
    """The sampler of one generation.

    Args:
        options: what was asked for.
        prompt_length: tokens of the prompt; those after it count as new.
        eos_ids: tokens that end a text, for ``min_new_tokens``.
        grammar: what the text must be, if anything.
    """
    edits: list[Edit] = []
    if options.logit_bias:
        edits.append(processors.logit_bias(dict(options.logit_bias)))
    if options.repetition_penalty != 1.0:
        edits.append(processors.repetition_penalty(options.repetition_penalty))
    if options.presence_penalty or options.frequency_penalty:
        edits.append(processors.count_penalties(options.presence_penalty, options.frequency_penalty, prompt_length))
    if options.no_repeat_ngram_size:
        edits.append(processors.no_repeat_ngram(options.no_repeat_ngram_size))
    if options.banned_tokens:
        edits.append(processors.ban(options.banned_tokens))
    if options.min_new_tokens:
        edits.append(processors.ban_until(eos_ids, prompt_length + options.min_new_tokens))
    if options.forced_tokens:
        edits.append(processors.force(options.forced_tokens, prompt_length))
    if grammar is not None:
        edits.append(grammar)
    return Sampler(
        edits,
        make_shape(options) if options.do_sample else None,
        np.random.default_rng(options.seed),
        typical=options.acceptance == "typical",
        ratio=options.acceptance == "ratio" or (options.acceptance == "auto" and options.seed is None),
        grammar=grammar,
        best=None if edits else (options.top_k or None) if options.do_sample else 2,  # two, to see how near a tie is
    )


class Grammar(Protocol):
    """An edit that leaves what a grammar allows, and knows where it leaves no choice."""

    def __call__(self, row: Floats, text: Text) -> None: ...

    def forced(self, text: Text) -> Sequence[int]:
        """Tokens that must come next, in order."""


Shape = Callable[[Floats], Distribution]


def make_shape(options: GenerationOptions) -> Shape:
    """From scores [V] to the distribution: temperature, then the cuts."""
    temperature = options.temperature
    cuts: list[Cut] = []
    if options.top_p < 1.0:
        cuts.append(processors.top_p(options.top_p))
    if options.min_p > 0.0:
        cuts.append(processors.min_p(options.min_p))
    if options.typical_p < 1.0:
        cuts.append(processors.typical_p(options.typical_p))

    def shape(scores: Floats) -> Distribution:
        tokens: Ids
        weights: Weights
        if 0 < options.top_k < len(scores):
            # The order of scores is that of probabilities, so that only the kept part is exponentiated.
            tokens = processors.most(scores, options.top_k)
            kept_scores = scores[tokens].astype(np.float64)
            weights = np.exp((kept_scores - kept_scores.max()) / temperature)
        else:
            tokens = np.arange(len(scores))
            with np.errstate(over="ignore"):
                weights = np.exp((scores - scores.max()) / np.float32(max(temperature, 1e-30)))
        for cut in cuts:
            kept = cut(weights)
            tokens, weights = tokens[kept], weights[kept]
        if weights.min() <= 0:
            kept = np.flatnonzero(weights > 0)
            tokens, weights = tokens[kept], weights[kept]
        return Distribution.of_weights(tokens, weights if len(tokens) > LARGE_KEPT else weights.astype(np.float64))

    return shape


class Sampler:
    """See the module. Without a ``shape`` it is greedy."""

    def __init__(
        self,
        edits: Sequence[Edit],
        shape: Shape | None,
        rng: np.random.Generator,
        *,
        ratio: bool,
        typical: bool = False,
        grammar: Grammar | None = None,
        best: int | None = None,
    ) -> None:
        self.best = best
        """How many of a row's likeliest tokens decide everything, None for all."""
        self._edits = tuple(edits)
        self._shape = shape
        self._rng = rng
        self._ratio = ratio
        self._typical = typical
        self._grammar = grammar
        self._buffer = np.zeros(0, np.float32)

    def __call__(self, row: Floats, text: Text = NO_TEXT, candidates: Sequence[Candidate] = (), /) -> int:
        """The token after ``text``.

        Args:
            row: the target's logits [V] there.
            text: the tokens before it.
            candidates: drafted tokens for this place, in the order in which they are tried.

        Raises:
            RuntimeFailure: logits that are not finite.
            UsageError: bans and grammar leave no token.
        """
        likeliest = greedy(row)
        scores = self._edited(row, text)
        if self._shape is None:
            return likeliest if scores is row else int(scores.argmax())
        p = self._shape(scores)
        if len(p.tokens) == 1:
            # No random number: a seed then goes on alike whether a forced token is accepted or committed without a pass.
            return int(p.tokens[0])
        if self._typical and (taken := first_typical(p, candidates)) is not None:
            return taken
        if self._ratio and any(q is not None for _, q in candidates):
            return reject_recursively(p, candidates, self._rng.random)
        return p.draw(self._rng.random())

    def is_close(self, row: Floats, text: Text, margin: float) -> bool:
        """Whether the two best tokens after ``text`` are within ``margin`` of each other. A draw has no such ties."""
        if self._shape is not None:
            return False
        scores = self._edited(row, text)
        best = int(scores.argmax())
        others = (float(part.max()) for part in (scores[:best], scores[best + 1 :]) if len(part))
        return float(scores[best]) - max(others, default=-np.inf) < margin

    def draft(self, row: Floats, text: Text) -> Candidate:
        """A draft's token after ``text``, from its logits [V], under the same edits and cuts: drawn from q where the target
        will accept by ratio, else the most likely one."""
        scores = self._draft_scores(row, text)
        if not self.draws:
            return int(scores.argmax()), None
        assert self._shape is not None
        q = self._shape(scores)
        return q.draw(self._rng.random()), q

    @property
    def draws(self) -> bool:
        """Whether drafts are drawn from q, so that none that was drawn may be dropped, and their order stays."""
        return self._shape is not None and self._ratio

    @property
    def takes_likeliest(self) -> bool:
        """Whether drafts are the likeliest tokens of a row as it is: nothing is drawn, and no edit asks which token a column is."""
        return self._shape is None and not self._edits

    def draft_several(self, rows: Sequence[Floats], text: Text, count: int) -> list[Guess]:
        """Up to ``count`` tokens of one or several drafts after ``text``, from their logits [V], under the same edits and cuts.

        q is the mean of the drafts' distributions. Where the target accepts by ratio, tokens are drawn from it without replacement;
        else they are the most likely ones, in that order.
        """
        tokens: Ids
        if self._shape is None:
            weights = np.mean([self._softmax(row, text) for row in rows], axis=0) if len(rows) > 1 else self._softmax(rows[0], text)
            tokens = processors.most(weights, min(count, len(weights)))
            tokens = tokens[np.argsort(-weights[tokens], kind="stable")]
            return [Guess(int(token), None, float(weights[token])) for token in tokens if weights[token] > 0]
        q = Distribution.mean([self._shape(self._draft_scores(row, text)) for row in rows])
        if self._ratio:
            drawn = draw_several(q, count, self._rng.random, replacement=False)
            return [Guess(token, left, q.probability(token)) for token, left in drawn]
        places = np.argsort(-q.weights, kind="stable")[:count]
        return [Guess(int(q.tokens[place]), None, float(q.weights[place])) for place in places]

    def _softmax(self, row: Floats, text: Text) -> Floats:
        scores = self._draft_scores(row, text)
        weights: Floats = np.exp(scores - scores.max())
        weights /= weights.sum()
        return weights

    def _draft_scores(self, row: Floats, text: Text) -> Floats:
        if not np.isfinite(row.max()):  # a NaN is the largest, too
            raise RuntimeFailure("the draft's logits are not finite (NaN or infinity): the bundle's weights are damaged or overflow")
        return self._edited(row, text)

    def forced(self, text: Text) -> Sequence[int]:
        """Tokens that come next whatever the models say."""
        return self._grammar.forced(text) if self._grammar is not None else ()

    def _edited(self, row: Floats, text: Text) -> Floats:
        """``row`` after the edits, in a buffer of our own."""
        if not self._edits:
            return row
        if len(self._buffer) != len(row):
            self._buffer = np.empty(len(row), np.float32)
        np.copyto(self._buffer, row)
        for edit in self._edits:
            edit(self._buffer, text)
        if not np.isfinite(self._buffer.max()):
            written = len(text.context) + len(text.ahead)
            raise DeadEnd(f"no token is allowed at position {written}: bans, no_repeat_ngram_size and grammar rule out all of them")
        return self._buffer


def reject_recursively(p: Distribution, candidates: Sequence[Candidate], uniform: Callable[[], float]) -> int:
    """A draw from ``p`` that is, as often as possible, one of ``candidates``; see the module. ``uniform`` gives numbers in [0, 1)."""
    for token, q in candidates:
        chance = p.probability(token)
        if uniform() * (1.0 if q is None else q.probability(token)) < chance:
            return token
        rest = p.without(token) if q is None else p.minus(q)
        if rest is None:  # p and q are equal up to rounding: the token was as good as accepted.
            return token if chance > 0 else p.draw(uniform())
        p = rest
    return p.draw(uniform())


def first_typical(p: Distribution, candidates: Sequence[Candidate]) -> int | None:
    """The first candidate that is at least as likely as a share of what a typical token of ``p`` is, None if all are less."""
    entropy = -float((p.weights * np.log(p.weights)).sum())
    least = min(TYPICAL_EPSILON, TYPICAL_DELTA * float(np.exp(-entropy)))
    return next((token for token, _ in candidates if p.probability(token) > least), None)


def draw_several(q: Distribution, count: int, uniform: Callable[[], float], *, replacement: bool) -> list[Candidate]:
    """Up to ``count`` candidates for one place, each with what it was drawn from. Without replacement they differ, and there
    may be fewer of them; with it equal ones are returned too, since each is a chance of its own."""
    found: list[Candidate] = []
    left: Distribution | None = q
    while left is not None and len(found) < count:
        token = left.draw(uniform())
        found.append((token, left))
        left = q if replacement else left.without(token)
    return found
