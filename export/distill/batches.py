"""From shards to batches: which windows of texts go together, and their arrays.

Letters: B windows in a batch, A rows of the longest, K steps, F width of the features, n labels of a row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from edgespec.export.distill.shards import Shard

POOL_BYTES = 512 * 2**20  # of hidden states in memory, from which batches are mixed
Rows = Callable[[Shard], tuple[np.ndarray, np.ndarray, np.ndarray]]
"""Features, likely tokens and their log-probabilities of a shard."""


@dataclasses.dataclass(frozen=True)
class Window:
    """Rows ``begin`` to ``end`` of a text of a shard, counted from the text's beginning."""

    shard: int
    text: int
    begin: int
    end: int


@dataclasses.dataclass(frozen=True)
class Batch:
    """Tensors of a batch. Row j of the draft reads the feature of token j and token j + 1, and foretells token j + 2; in step s all is
    s tokens later.

    Attributes:
        tokens: int64 [B, A + K].
        features: float32 [B, A, F].
        labels: int64 [B, A + K, n], the draft's ids of what the target says behind each token, -1 where the draft has no such token.
        p: float32 [B, A + K, n], the target's probabilities among these; all 0 in rows without labels.
        labelled: bool [B, A + K].
    """

    tokens: torch.Tensor
    features: torch.Tensor
    labels: torch.Tensor
    p: torch.Tensor
    labelled: torch.Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    def to(self, device: torch.device) -> Batch:
        return Batch(*(getattr(self, field.name).to(device) for field in dataclasses.fields(self)))

    def parts(self, count: int) -> list[Batch]:
        """The same in ``count`` pieces."""
        pieces = [getattr(self, field.name).tensor_split(count) for field in dataclasses.fields(self)]
        return [Batch(*fields) for fields in zip(*pieces, strict=True)]


class Batches:
    """The batches of a corpus.

    Args:
        shards: the corpus.
        rows: reads or computes what goes with a shard's tokens.
        ids: the target's id [Vd] of each of the draft's tokens.
        vocabulary: of the target, V.
        width: of the features, F.
        steps: K.
        window: rows of a window, at most.
        batch_rows: rows of a batch, padding included, at most; a window may have more.
        seed: of the order.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        rows: Rows,
        ids: np.ndarray,
        vocabulary: int,
        width: int,
        steps: int,
        window: int,
        batch_rows: int,
        seed: int,
    ) -> None:
        self._shards = shards
        self._rows = rows
        self._draft_ids = np.full(vocabulary, -1, np.int64)
        self._draft_ids[ids] = np.arange(len(ids))
        self._width = width
        self._steps = steps
        self._window = window
        self._batch_rows = batch_rows
        self._seed = seed
        self._read: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    def plan(self, epoch: int) -> list[list[Window]]:
        """The batches of an epoch in order. Shards are mixed in groups that fit into memory."""
        rng = np.random.default_rng((self._seed, epoch))
        order = rng.permutation(len(self._shards)).tolist()
        found: list[list[Window]] = []
        while order:
            group: list[int] = []
            size = 0
            while order and (not group or size + self._bytes(order[0]) <= POOL_BYTES):
                size += self._bytes(order[0])
                group.append(order.pop(0))
            batches = self._pack([window for shard in group for window in self._windows(shard)], rng)
            found += [batches[int(index)] for index in rng.permutation(len(batches))]
        return found

    def in_order(self) -> Iterator[tuple[Shard, list[Window]]]:
        """Each text as one window, its answer whole, batches of a shard at a time."""
        for shard in range(len(self._shards)):
            lengths = np.diff(self._shards[shard].bounds)
            windows = [Window(shard, text, 0, int(length)) for text, length in enumerate(lengths)]
            for batch in self._pack(windows, None):
                yield self._shards[shard], batch

    def load(self, windows: Sequence[Window]) -> Batch:
        """The tensors of a batch."""
        needed = {window.shard for window in windows}
        if not needed <= set(self._read):
            self._forget(needed)
        longest, steps = max(window.end - window.begin for window in windows), self._steps
        tokens = np.zeros((len(windows), longest + steps), np.int64)
        features = np.zeros((len(windows), longest, self._width), np.float32)
        count = max(self._rows_of(shard)[1].shape[1] for shard in needed)
        labels = np.full((len(windows), longest + steps, count), -1, np.int64)
        p = np.zeros(labels.shape, np.float32)
        labelled = np.zeros(labels.shape[:2], bool)
        for row, window in enumerate(windows):
            shard = self._shards[window.shard]
            hidden, likely, log_p = self._rows_of(window.shard)
            begin, length = int(shard.bounds[window.text]) + window.begin, window.end - window.begin
            tokens[row, :length] = shard.tokens[begin : begin + length]
            features[row, :length] = hidden[begin : begin + length]
            first = max(int(shard.starts[window.text]) - window.begin, 0)
            given = self._labels_before(window) + np.arange(length - first)
            ids = self._draft_ids[likely[given]]
            labels[row, first:length] = ids
            # Where the draft lacks the likeliest token there is nothing to be right about.
            kept = np.where((ids >= 0) & (ids[:, :1] >= 0), np.exp(log_p[given].astype(np.float32)), 0)
            p[row, first:length] = kept / np.maximum(kept.sum(-1, keepdims=True), 1e-9)
            labelled[row, first:length] = True
        return Batch(*map(torch.from_numpy, (tokens, features, labels, p, labelled)))

    def _labels_before(self, window: Window) -> int:
        """Labelled rows of the shard before the window's first one."""
        shard = self._shards[window.shard]
        before = int((np.diff(shard.bounds) - shard.starts)[: window.text].sum())
        return before + max(window.begin - int(shard.starts[window.text]), 0)

    def _windows(self, number: int) -> list[Window]:
        """The last rows of each text, and windows before them as long as there are labels."""
        shard, found = self._shards[number], []
        for text, (length, start) in enumerate(zip(np.diff(shard.bounds).tolist(), shard.starts.tolist(), strict=True)):
            end = length
            while end == length or end > start + 1:
                begin = max(end - self._window, 0)
                found.append(Window(number, text, begin, end))
                end = begin
                if not begin:
                    break
        return found

    def _pack(self, windows: list[Window], rng: np.random.Generator | None) -> list[list[Window]]:
        """Windows of about the same length together; equal ones in random order."""
        if rng is not None:
            windows = [windows[int(index)] for index in rng.permutation(len(windows))]
        windows = sorted(windows, key=lambda window: window.end - window.begin)
        found: list[list[Window]] = []
        for window in windows:
            longest = window.end - window.begin
            if not found or (len(found[-1]) + 1) * longest > self._batch_rows:
                found.append([])
            found[-1].append(window)
        return found

    def _bytes(self, number: int) -> int:
        return len(self._shards[number].tokens) * self._width * 2

    def _rows_of(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if number not in self._read:
            self._read[number] = self._rows(self._shards[number])
        return self._read[number]

    def _forget(self, needed: set[int]) -> None:
        """Make room for other shards where those in memory are many."""
        size = sum(self._bytes(number) for number in {*self._read, *needed})
        if size > POOL_BYTES:
            self._read = {number: rows for number, rows in self._read.items() if number in needed}
