"""Many texts at once: a pass carries the newest token of each of N texts, and a text that ends gives its slot to the next one at once.

Orca (Yu et al. 2022) calls this iteration-level scheduling. The beginning of a text is scored by a model of its own in wide passes,
which keeps what a text has in common with the one before it; its cache rows are then copied into the slot.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from edgespec.errors import CapacityError, RuntimeFailure
from edgespec.export.distill.batch_model import BatchModel
from edgespec.export.distill.repetition import period_of
from edgespec.runtime.models.model import Model
from edgespec.runtime.models.rows import Floats

LABELS = 8  # likeliest tokens of the target that are kept for each row
CHOICES = 64  # tokens that a sampled text is drawn from
NUCLEUS = 0.95  # share of probability that it is drawn from
LOOK = 8  # tokens between two looks for a loop
LARGEST = 65504.0  # of float16

Halves = npt.NDArray[np.float16]


@dataclasses.dataclass(frozen=True)
class Request:
    """A text to write.

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
    """A text that is written; n tokens, each of which the target has seen.

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
class _Running:
    """A text on its way: ``tokens`` have rows, ``next`` is chosen and has none yet, or is None: the text has ended."""

    index: int
    request: Request
    rng: np.random.Generator
    tokens: list[int] = dataclasses.field(default_factory=list)
    next: int | None = None
    features: list[Halves] = dataclasses.field(default_factory=list)
    likely: list[npt.NDArray[np.int32]] = dataclasses.field(default_factory=list)
    log_p: list[Halves] = dataclasses.field(default_factory=list)

    @property
    def room(self) -> int:
        """Rows that it may still get."""
        return len(self.request.tokens) + self.request.most - len(self.tokens)

    def label(self, likely: npt.NDArray[np.int32], log_p: Floats) -> None:
        """Keep the labels [n] of the next rows."""
        self.likely.append(likely[:, :LABELS].copy())
        self.log_p.append(np.maximum(log_p[:, :LABELS], -LARGEST).astype(np.float16))

    def choose(self, likely: npt.NDArray[np.int32], log_p: Floats, ends: frozenset[int]) -> None:
        """Set ``next`` by the newest row's likeliest tokens."""
        self.next = None
        answer = len(self.tokens) - len(self.request.tokens)
        looping = answer and answer % LOOK == 0 and period_of(self.tokens[-answer:]) is not None
        if self.room > 0 and not looping:
            token = _choose(likely, log_p, self.request.temperature, self.rng)
            self.next = None if token in ends else token

    def text(self) -> Text:
        answer = self.tokens[len(self.request.tokens) :]
        end = "loop" if period_of(answer) is not None else "end" if self.room > 0 else "length"
        features, likely, log_p = np.concatenate(self.features), np.concatenate(self.likely), np.concatenate(self.log_p)
        return Text(np.array(self.tokens, np.int32), self.request.start, features, likely, log_p, end)


class ContinuousBatching:
    """Writes texts, as many side by side as ``batch`` has caches.

    Args:
        model: the target, which scores beginnings; what its cache holds is lost.
        batch: the same target, which goes on from there. None if no request asks for more.
        vocabulary: ids from it on are no tokens.
        ends: tokens that end a text.
    """

    def __init__(self, model: Model, batch: BatchModel | None, vocabulary: int, ends: frozenset[int]) -> None:
        self._model = model
        self._batch = batch
        self._vocabulary = vocabulary
        self._ends = ends

    def write(self, requests: Sequence[Request]) -> Iterator[tuple[int, Text]]:
        """Each text with its index among ``requests``, in the order in which they end.

        Raises:
            CapacityError: a text does not fit into the cache.
            RuntimeFailure: a pass fails, or its logits are not finite.
        """
        if self._batch is not None:
            self._batch.reserve(min(max((len(item.tokens) + item.most for item in requests), default=0), self._model.capacity))
        slots = self._batch.texts if self._batch is not None else 1
        waiting = iter(enumerate(requests))
        running: list[_Running] = []
        while True:
            while len(running) < slots and (upcoming := next(waiting, None)):
                text = self._begin(*upcoming)
                if text.next is None:
                    yield text.index, text.text()
                else:
                    self._place(len(running), len(text.tokens))
                    running.append(text)
            if not running:
                return
            self._pass(running)
            for text in [text for text in running if text.next is None]:
                yield text.index, text.text()
            self._close_up(running)

    def _begin(self, index: int, request: Request) -> _Running:
        """Score the beginning of a text and choose the token behind it."""
        model, tokens = self._model, [int(token) for token in request.tokens]
        needs = len(tokens) + request.most
        if needs > model.capacity:
            raise CapacityError(f"a text of {needs} tokens does not fit into {model.capacity} cache rows")
        running = _Running(index, request, np.random.default_rng(request.seed), tokens)
        model.keep_common(tokens[: request.start + 1])  # rows to be labelled are run
        while model.length < len(tokens):
            at = model.length
            piece = tokens[at : at + model.chunk]
            labelled = range(min(max(request.start - at, 0), len(piece)), len(piece))
            rows = labelled or [len(piece) - 1]  # the last row of all says how the text goes on
            likely, log_p = _likeliest(model.run(piece, rows)[:, : self._vocabulary])
            running.label(likely[: len(labelled)], log_p[: len(labelled)])
        running.features.append(_halves(model.features))
        running.choose(likely[-1], log_p[-1], self._ends)
        return running

    def _place(self, slot: int, length: int) -> None:
        assert self._batch is not None
        self._batch.place(slot, self._model.cache_rows(0, length)[: 2 * len(self._model.spec.layers)])

    def _pass(self, running: Sequence[_Running]) -> None:
        """Run the chosen tokens of all texts, take what they give, and choose the next ones."""
        assert self._batch is not None
        tokens = [text.next for text in running if text.next is not None]
        logits, features = self._batch.run(tokens, [len(text.tokens) for text in running])
        likely, log_p = _likeliest(logits[:, : self._vocabulary])
        for row, (text, token) in enumerate(zip(running, tokens, strict=True)):
            text.tokens.append(token)
            text.features.append(_halves(features[row : row + 1]))
            text.label(likely[row : row + 1], log_p[row : row + 1])
            text.choose(likely[row], log_p[row], self._ends)

    def _close_up(self, running: list[_Running]) -> None:
        """Drop the texts that have ended; the last ones take their slots, so that a pass has no idle rows."""
        assert self._batch is not None
        for slot in reversed(range(len(running))):
            if running[slot].next is None:
                last = running.pop()
                if slot < len(running):
                    running[slot] = last
                    self._batch.move(len(running), slot, len(last.tokens))


def _halves(features: Floats) -> Halves:
    return np.clip(features, -LARGEST, LARGEST).astype(np.float16)


def _likeliest(logits: Floats) -> tuple[npt.NDArray[np.int32], Floats]:
    """The likeliest tokens [R, n] of logits [R, V] and their log-probabilities."""
    rows = torch.from_numpy(logits)
    values, ids = rows.topk(min(CHOICES, rows.shape[1]), -1)
    log_p = values - rows.logsumexp(-1, keepdim=True)
    if not torch.isfinite(values).all():
        raise RuntimeFailure("the target's logits are not finite (NaN or infinity): its weights are damaged or overflow")
    return ids.to(torch.int32).numpy(), log_p.numpy()


def _choose(likely: npt.NDArray[np.int32], log_p: Floats, temperature: float, rng: np.random.Generator) -> int:
    """A draw from the likeliest tokens, or the likeliest one."""
    if temperature <= 0:
        return int(likely[0])
    p = np.exp((log_p.astype(np.float64) - log_p[0]) / temperature)
    p /= p.sum()
    kept = np.cumsum(p) - p < NUCLEUS
    return int(rng.choice(likely[kept], p=p[kept] / p[kept].sum()))
