"""Many texts at once through a graph of batch 1: each text is a branch behind a common trunk, and a pass carries a row or more of each.

A row sees the trunk and the rows of its own text. The mask is therefore no more than a comparison of owners, one number for each row
of the cache, and a pass costs what a verification pass of as many tokens costs: the weights are read once for all texts. A text that
has ended gives its slot to the next one. Its rows stay until they outnumber those in use or the cache is full, and are then closed up.

    trunk  |  a0 b0 c0  a1 b1 c1  a2 b2 d0  ...        c has ended, d has its slot
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from edgespec.errors import CapacityError, RuntimeFailure
from edgespec.export.distill.repetition import period_of
from edgespec.runtime.model import Model
from edgespec.runtime.rows import Hidden

LABELS = 8  # likeliest tokens of the target that are kept for each row
CHOICES = 64  # tokens that a sampled text is drawn from
NUCLEUS = 0.95  # share of probability that it is drawn from
LOOK = 8  # tokens between two looks for a loop
LARGEST = 65504.0  # of float16

Halves = npt.NDArray[np.float16]


@dataclasses.dataclass(frozen=True)
class Planting:
    """A text to grow.

    Attributes:
        tokens: its beginning, at least one token.
        start: rows from this token on are labelled: with what the target says next there.
        most: tokens that may be written, 0 to label the beginning alone.
        temperature: what tokens are drawn at, 0 for the most likely one.
        seed: of the draws.
    """

    tokens: Sequence[int]
    start: int
    most: int = 0
    temperature: float = 0.0
    seed: tuple[int, ...] = (0,)


@dataclasses.dataclass(frozen=True)
class Text:
    """A text that has grown; n tokens, each of which the target has seen.

    Attributes:
        tokens: int32 [n].
        start: the first labelled row.
        features: float16 [n, F], the target's hidden states.
        likely: int32 [n - start, 8], the target's likeliest next tokens there, the likeliest first.
        log_p: float16 [n - start, 8], the logarithms of their probabilities.
        end: "end" if the target ended it, "length" if it was cut, "loop" if it repeats itself.
    """

    tokens: npt.NDArray[np.int32]
    start: int
    features: Halves
    likely: npt.NDArray[np.int32]
    log_p: Halves
    end: str

    def shortened(self, length: int) -> Text:
        """Its first ``length`` tokens."""
        rows = max(length - self.start, 0)
        return dataclasses.replace(
            self, tokens=self.tokens[:length], features=self.features[:length], likely=self.likely[:rows], log_p=self.log_p[:rows]
        )


@dataclasses.dataclass
class _Branch:
    """A text on its way. ``pending`` tokens have no rows yet; all of its other tokens have."""

    index: int
    planting: Planting
    pending: list[int]
    tokens: list[int]
    rng: np.random.Generator
    features: list[Halves] = dataclasses.field(default_factory=list)
    likely: list[npt.NDArray[np.int32]] = dataclasses.field(default_factory=list)
    log_p: list[Halves] = dataclasses.field(default_factory=list)

    @property
    def needs(self) -> int:
        """Rows that it may come to have, those of the trunk included."""
        return len(self.planting.tokens) + self.planting.most

    @property
    def room(self) -> int:
        """Rows that it may still get."""
        return self.needs - len(self.tokens)


class Forest:
    """Grows texts in ``slots`` at a time.

    Args:
        model: the target; what its cache holds is lost.
        vocabulary: ids from it on are no tokens.
        ends: tokens that end a text.
        slots: texts that grow side by side.
    """

    def __init__(self, model: Model, vocabulary: int, ends: frozenset[int], slots: int) -> None:
        self._model = model
        self._vocabulary = vocabulary
        self._ends = ends
        self._slots = slots
        self._trunk: list[int] = []
        self._owners = np.zeros(0, np.int64)
        """Of each row behind the trunk, the text that it belongs to."""
        self._positions = np.zeros(0, np.int64)

    def grow(self, plantings: Sequence[Planting]) -> Iterator[tuple[int, Text]]:
        """Each text with its index among ``plantings``, in the order in which they end.

        Raises:
            CapacityError: a text does not fit into the cache.
            RuntimeFailure: a pass fails, or its logits are not finite.
        """
        if not plantings:
            return
        self._plant_trunk(plantings)
        waiting = iter([self._branch(index, planting) for index, planting in enumerate(plantings)])
        upcoming = next(waiting, None)
        live: list[_Branch] = []
        while live or upcoming is not None:
            while upcoming is not None and len(live) < self._slots and self._fits(upcoming, live):
                live.append(upcoming)
                upcoming = next(waiting, None)
            self._make_room(live)
            self._pass(live)
            for branch in [branch for branch in live if not branch.pending]:
                live.remove(branch)
                yield branch.index, self._text(branch)

    def _plant_trunk(self, plantings: Sequence[Planting]) -> None:
        """What all texts have in common is computed once, but for the last token of each and for labelled rows."""
        shared = min(min(len(planting.tokens) - 1, planting.start) for planting in plantings)
        first = plantings[0].tokens
        length = next((i for i in range(shared) if any(planting.tokens[i] != first[i] for planting in plantings)), shared)
        self._trunk = [int(token) for token in first[:length]]
        self._owners = self._positions = np.zeros(0, np.int64)
        model = self._model
        model.keep(0)
        for at in range(0, length, model.max_pass):
            model.run(self._trunk[at : at + model.max_pass], [0])

    def _branch(self, index: int, planting: Planting) -> _Branch:
        tokens = [int(token) for token in planting.tokens]
        behind = len(self._trunk)
        branch = _Branch(index, planting, tokens[behind:], tokens[:behind], np.random.default_rng(planting.seed))
        if branch.needs > self._model.capacity:
            raise CapacityError(f"a text of {branch.needs} tokens does not fit into {self._model.capacity} cache rows")
        return branch

    def _fits(self, branch: _Branch, live: Sequence[_Branch]) -> bool:
        trunk = len(self._trunk)
        return trunk + sum(other.needs - trunk for other in [*live, branch]) <= self._model.capacity

    def _make_room(self, live: Sequence[_Branch]) -> None:
        """Close up the rows of texts that have ended where they are a burden."""
        model, rows = self._model, len(self._owners)
        used = np.isin(self._owners, [branch.index for branch in live])
        idle = rows - int(used.sum())
        if idle and (idle > max(rows - idle, model.max_pass) or model.length + model.max_pass > model.capacity):
            model.keep_path(len(self._trunk), np.flatnonzero(used).tolist())
            self._owners, self._positions = self._owners[used], self._positions[used]

    def _pass(self, live: Sequence[_Branch]) -> None:
        """Run the next rows of all texts, take what they give, and choose the next tokens."""
        model, before = self._model, len(self._owners)
        counts = _shares([len(branch.pending) for branch in live], min(model.max_pass, model.capacity - model.length))
        owners = np.repeat([branch.index for branch in live], counts)
        positions = np.concatenate([np.arange(len(b.tokens), len(b.tokens) + count) for b, count in zip(live, counts, strict=True)])
        self._owners = np.concatenate([self._owners, owners])
        self._positions = np.concatenate([self._positions, positions])
        rows = np.arange(before, before + len(owners))
        mask = (owners[:, None] != self._owners) | (np.arange(len(self._owners)) > rows[:, None])
        tokens = list(itertools.chain.from_iterable(b.pending[:count] for b, count in zip(live, counts, strict=True)))
        wanted = [self._wanted(branch, count) for branch, count in zip(live, counts, strict=True)]
        starts = np.cumsum([0, *counts])
        asked = [int(start) + row for start, found in zip(starts, wanted, strict=False) for row in found]
        first = model.length
        logits = model.run(tokens, asked, Hidden(len(self._trunk), mask, self._positions))
        likely, log_p = _likeliest(logits[:, : self._vocabulary])
        at = 0
        for branch, count, start, found in zip(live, counts, starts, wanted, strict=False):
            features = model.features[first + start : first + start + count]
            branch.features.append(np.clip(features, -LARGEST, LARGEST).astype(np.float16))
            given = slice(at, at + len(found))
            self._take(branch, count, found, likely[given], log_p[given])
            at += len(found)

    def _wanted(self, branch: _Branch, count: int) -> list[int]:
        """Rows of the next ``count`` of a text whose logits are wanted: labelled ones, and the one behind which it goes on."""
        start = branch.planting.start - len(branch.tokens)
        chooses = branch.room > count == len(branch.pending)
        return [row for row in range(count) if row >= start or (chooses and row == count - 1)]

    def _take(
        self, branch: _Branch, count: int, found: Sequence[int], likely: npt.NDArray[np.int32], log_p: npt.NDArray[np.float32]
    ) -> None:
        """Move ``count`` tokens from pending to run, with their labels, and choose the next if the text goes on."""
        labelled = [i for i, row in enumerate(found) if len(branch.tokens) + row >= branch.planting.start]
        branch.likely.append(likely[labelled, :LABELS])
        branch.log_p.append(np.maximum(log_p[labelled, :LABELS], -LARGEST).astype(np.float16))
        branch.tokens += branch.pending[:count]
        del branch.pending[:count]
        if branch.pending or branch.room <= 0:
            return
        answer = len(branch.tokens) - len(branch.planting.tokens)
        if answer and answer % LOOK == 0 and period_of(branch.tokens[-answer:]) is not None:
            return
        token = _choose(likely[-1], log_p[-1], branch.planting.temperature, branch.rng)
        if token not in self._ends:
            branch.pending.append(token)

    def _text(self, branch: _Branch) -> Text:
        trunk = self._model.features[: len(self._trunk)]
        features = [np.clip(trunk, -LARGEST, LARGEST).astype(np.float16), *branch.features]
        answer = branch.tokens[len(branch.planting.tokens) :]
        end = "loop" if period_of(answer) is not None else "end" if branch.room > 0 else "length"
        tokens = np.array(branch.tokens, np.int32)
        likely, log_p = np.concatenate(branch.likely), np.concatenate(branch.log_p)
        return Text(tokens, branch.planting.start, np.concatenate(features), likely, log_p, end)


def _shares(pending: Sequence[int], room: int) -> list[int]:
    """How many of the pending tokens of each text a pass takes: one of each where there is room, then what is left in order."""
    counts = [int(index < room) for index in range(len(pending))]
    left = room - sum(counts)
    for index, count in enumerate(pending):
        more = min(count - counts[index], left)
        counts[index] += more
        left -= more
    return counts


def _likeliest(logits: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """The likeliest tokens [R, n] of logits [R, V] and their log-probabilities."""
    rows = torch.from_numpy(logits)
    values, ids = rows.topk(min(CHOICES, rows.shape[1]), -1)
    log_p = values - rows.logsumexp(-1, keepdim=True)
    if not torch.isfinite(values).all():
        raise RuntimeFailure("the target's logits are not finite (NaN or infinity): its weights are damaged or overflow")
    return ids.to(torch.int32).numpy(), log_p.numpy()


def _choose(likely: npt.NDArray[np.int32], log_p: npt.NDArray[np.float32], temperature: float, rng: np.random.Generator) -> int:
    """A draw from the likeliest tokens, or the likeliest one."""
    if temperature <= 0:
        return int(likely[0])
    p = np.exp((log_p.astype(np.float64) - log_p[0]) / temperature)
    p /= p.sum()
    kept = np.cumsum(p) - p < NUCLEUS
    return int(rng.choice(likely[kept], p=p[kept] / p[kept].sum()))
