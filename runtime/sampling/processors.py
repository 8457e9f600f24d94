"""Processors: what changes scores before a token is chosen, and what cuts the tokens that may be drawn.

An **edit** changes a row of logits [V] in place, knowing the text before it; most change a few entries. A **cut** gets the
weights [k] of the tokens that are left and returns the indices of those it keeps. Both are plain callables, made by the
functions here and composed by :mod:`edgespec.runtime.sampling.sampling`: first the edits, then temperature, then the cuts. The order
is that of transformers: bias, penalties, bans, grammar, temperature, top-k, top-p, min-p, typical-p.

A text is two sequences: ``context``, the committed tokens, which only grows during a generation, and ``ahead``, tokens
that the current round has accepted (or a draft has guessed) after it. So a penalty sees a token accepted earlier in the
same block, and what it has counted of the context is counted once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Weights = npt.NDArray[np.floating]

GROUPS = 1024


class Text(NamedTuple):
    """The tokens before a row of logits, see the module."""

    context: Sequence[int] = ()
    ahead: Sequence[int] = ()


Edit = Callable[[Floats, Text], None]
Cut = Callable[[Weights], Ids]


class Tally:
    """How often each token occurs in the context from ``start`` on."""

    def __init__(self, start: int) -> None:
        self._known = start
        self._counts: dict[int, int] = {}
        self.ids: Ids = np.zeros(0, np.int64)
        self.counts: npt.NDArray[np.float32] = np.zeros(0, np.float32)

    def count(self, token: int) -> int:
        return self._counts.get(token, 0)

    def update(self, context: Sequence[int]) -> None:
        if self._known >= len(context):
            return
        for token in context[self._known :]:
            self._counts[token] = self._counts.get(token, 0) + 1
        self._known = len(context)
        self.ids = np.fromiter(self._counts, np.int64, len(self._counts))
        self.counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))


def repetition_penalty(penalty: float) -> Edit:
    """Positive scores of tokens that occur in the text, prompt included, are divided by ``penalty``, negative ones are
    multiplied with it (Keskar et al. 2019)."""
    tally = Tally(0)

    def edit(row: Floats, text: Text) -> None:
        tally.update(text.context)
        new = [token for token in dict.fromkeys(text.ahead) if not tally.count(token)]
        ids = inside(np.append(tally.ids, np.asarray(new, np.int64)) if new else tally.ids, row)
        scores = row[ids]
        row[ids] = np.where(scores > 0, scores / penalty, scores * penalty)

    return edit


def count_penalties(presence: float, frequency: float, start: int) -> Edit:
    """Scores of tokens written from position ``start`` on, the prompt's end, fall by ``presence`` once and by ``frequency``
    for each occurrence."""
    tally = Tally(start)
    one, each = np.float32(presence), np.float32(frequency)

    def edit(row: Floats, text: Text) -> None:
        tally.update(text.context)
        ahead = Counter(token for token in text.ahead if token < len(row))
        before = {token: row[token] for token in ahead}
        row[inside(tally.ids, row)] -= one + each * tally.counts[tally.ids < len(row)]
        # One subtraction for the whole count, so that a token of this block weighs to the last bit what it will once committed.
        for token, count in ahead.items():
            row[token] = before[token] - (one + each * np.float32(tally.count(token) + count))

    return edit


def no_repeat_ngram(size: int) -> Edit:
    """A token that would repeat ``size`` tokens in a row which the text has already is impossible."""
    followers: dict[tuple[int, ...], set[int]] = {}
    known = size - 1

    def edit(row: Floats, text: Text) -> None:
        nonlocal known
        context, ahead = text.context, text.ahead
        for end in range(known, len(context)):
            followers.setdefault(tuple(context[end - size + 1 : end]), set()).add(context[end])
        known = max(known, len(context))
        tail = [*context[max(len(context) - size + 1, 0) :], *ahead]
        if len(tail) < size - 1:
            return
        last = tuple(tail[len(tail) - size + 1 :])
        banned = set(followers.get(last, ()))
        banned.update(tail[end] for end in range(size - 1, len(tail)) if tuple(tail[end - size + 1 : end]) == last)
        if banned:
            row[inside(np.fromiter(banned, np.int64, len(banned)), row)] = -np.inf

    return edit


def logit_bias(bias: Mapping[int, float]) -> Edit:
    """Adds to the scores of single tokens."""
    ids = np.fromiter(bias.keys(), np.int64, len(bias))
    values = np.fromiter(bias.values(), np.float32, len(bias))

    def edit(row: Floats, _text: Text) -> None:
        fits = ids < len(row)
        row[ids[fits]] += values[fits]

    return edit


def ban(tokens: Sequence[int]) -> Edit:
    """Tokens that are never written."""
    ids = np.asarray(sorted(tokens), np.int64)

    def edit(row: Floats, _text: Text) -> None:
        row[inside(ids, row)] = -np.inf

    return edit


def ban_until(tokens: Sequence[int], position: int) -> Edit:
    """Tokens, those that end a text, that are not written before the text has ``position`` tokens."""
    banned = ban(tokens)

    def edit(row: Floats, text: Text) -> None:
        if len(text.context) + len(text.ahead) < position:
            banned(row, text)

    return edit


def force(tokens: Sequence[int], start: int) -> Edit:
    """From position ``start``, the prompt's end, the text begins with ``tokens``."""

    def edit(row: Floats, text: Text) -> None:
        index = len(text.context) + len(text.ahead) - start
        if 0 <= index < len(tokens):
            only(tokens[index], row)

    return edit


def only(token: int, row: Floats) -> None:
    """Leave one token possible. Its score becomes 0, so that a ban of it is undone: what is forced comes."""
    row.fill(-np.inf)
    if token < len(row):
        row[token] = 0.0


def inside(ids: Ids, row: Floats) -> Ids:
    """The ids that a row has: a draft's vocabulary can be smaller than the target's."""
    return ids if not len(ids) or int(ids.max()) < len(row) else ids[ids < len(row)]


def top_k(count: int) -> Cut:
    """The ``count`` most likely tokens; of equal ones the lower ids."""

    def cut(weights: Weights) -> Ids:
        return most(weights, count)

    return cut


def top_p(share: float) -> Cut:
    """The fewest most likely tokens that together have this share (nucleus sampling, Holtzman et al. 2020)."""

    def cut(weights: Weights) -> Ids:
        return fewest(weights, weights, share)

    return cut


def min_p(share: float) -> Cut:
    """Tokens with at least this share of the most likely one's probability (Nguyen et al. 2024)."""

    def cut(weights: Weights) -> Ids:
        return np.flatnonzero(weights >= share * weights.max())

    return cut


def typical_p(share: float) -> Cut:
    """The fewest tokens with this share whose information is nearest to the expected one (Meister et al. 2023)."""

    def cut(weights: Weights) -> Ids:
        probabilities = weights / weights.sum()
        with np.errstate(divide="ignore", invalid="ignore"):
            information = -np.log(probabilities)
            expected = np.nansum(probabilities * information)
        return fewest(-np.abs(information - expected), weights, share)

    return cut


def most(values: Weights, count: int) -> Ids:
    """Indices, ascending, of the ``count`` largest values; of equal ones the lower indices."""
    if count >= len(values):
        return np.arange(len(values))
    found = at_least(values, count)
    if len(found) > count:
        found = np.sort(found[np.argsort(-values[found], kind="stable")[:count]])
    return found


def fewest(values: Weights, weights: Weights, share: float) -> Ids:
    """Indices, ascending, of the fewest entries, the largest ``values`` first, whose weights have ``share`` of all."""
    wanted = share * float(weights.sum())
    count, found = 64, np.arange(len(values))
    while 4 * count < len(values):
        some = at_least(values, count)
        if float(weights[some].sum()) >= wanted:
            found = some
            break
        count *= 8
    order = found[np.argsort(-values[found], kind="stable")]
    needed = int(np.searchsorted(np.cumsum(weights[order], dtype=np.float64), wanted)) + 1
    return np.sort(order[:needed])


def at_least(values: Weights, count: int) -> Ids:
    """Indices, ascending, of a set that has the ``count`` largest values and every equal of its smallest one.

    Of a large vocabulary the largest value of each of a thousand groups is looked at: the ``count``-th largest of these
    is at most the ``count``-th largest of all, and few values reach it. A twentieth of the time of a partition.
    """
    size = len(values)
    if size >= 8 * GROUPS and 2 * count <= GROUPS:
        groups = values[: size // GROUPS * GROUPS].reshape(-1, GROUPS).max(axis=0)
        bound = np.partition(groups, GROUPS - count)[GROUPS - count]
        if bound > values.dtype.type(-np.inf):
            return np.flatnonzero(values >= bound)
    bound = np.partition(values, size - count)[size - count]
    return np.flatnonzero(values >= bound)
