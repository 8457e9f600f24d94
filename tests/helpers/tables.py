"""A model that is a table of logits, without ONNX Runtime, and the exact distribution of what is sampled from it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace

import numpy as np

from edgespec.runtime.exactness import WidthRule
from edgespec.runtime.loop import Target

Sequence_ = tuple[int, ...]


class TableModel:
    """The methods of ``edgespec.runtime.models.model.Model`` on a table: logits [V] of a row are those of its own token."""

    capacity = 10_000
    chunk = 128

    def __init__(self, table: np.ndarray) -> None:
        self.table = table.astype(np.float32)
        self.spec = SimpleNamespace(vocab_size=len(table))
        self.tokens: list[int] = []
        self.passes = 0
        self.run_seconds = 0.0
        self.made_first_step = False

    @property
    def length(self) -> int:
        return len(self.tokens)

    def run(self, tokens: Sequence[int], rows: Sequence[int], *_: object, **__: object) -> np.ndarray:
        self.tokens.extend(tokens)
        self.passes += 1
        return self.table[[tokens[row] for row in rows]]

    def keep(self, length: int) -> None:
        assert 0 <= length <= self.length
        del self.tokens[length:]

    def keep_common(self, context: Sequence[int]) -> None:
        most = min(self.length, len(context) - 1)
        self.keep(next((index for index in range(most) if self.tokens[index] != context[index]), max(most, 0)))

    def keep_path(self, start: int, rows: Sequence[int]) -> None:
        self.tokens[start:] = [self.tokens[start + row] for row in rows]


class TableHead(TableModel):
    """A table that takes features and gives some, as an EAGLE head does. The table is [V, Vd]."""

    def __init__(self, table: np.ndarray) -> None:
        super().__init__(table)
        self.spec = SimpleNamespace(vocab_size=table.shape[1])

    @property
    def features(self) -> np.ndarray:
        return np.zeros((self.length, 1), np.float32)

    def run(self, tokens: Sequence[int], rows: Sequence[int], *_: object, **others: object) -> np.ndarray:
        features = others["features"]
        assert isinstance(features, np.ndarray)
        assert len(features) == len(tokens)
        return super().run(tokens, rows)


class TableHeads:
    """Medusa heads whose hidden state [1] is the row's token: head d ranks by the table's row d places on."""

    def __init__(self, table: np.ndarray, heads: int) -> None:
        self.heads, self.ranks = heads, len(table)
        self._ranked = np.argsort(-table, axis=-1)
        self.spec = SimpleNamespace(accuracy=None)
        self.passes = 0
        self.run_seconds = 0.0
        self.made_first_step = False

    def run(self, features: np.ndarray) -> np.ndarray:
        self.passes += 1
        ahead = features.astype(np.int64) + 1 + np.arange(self.heads)
        return self._ranked[ahead % len(self._ranked)]


def table_target(table: np.ndarray, eos_ids: Sequence[int] = ()) -> Target:
    widths = WidthRule(tuple(range(1, 17)))
    return Target(TableModel(table), widths, widths, len(table), frozenset(eos_ids), branches=True)  # type: ignore[arg-type]


def exact_sequences(next_of: Callable[[Sequence_], np.ndarray], length: int, eos: int | None) -> dict[Sequence_, float]:
    """Probability of every text of ``length`` tokens, or fewer that end with ``eos``; ``next_of`` gives p after a text."""

    def extend(text: Sequence_, probability: float) -> Iterator[tuple[Sequence_, float]]:
        if len(text) == length or (text and text[-1] == eos):
            yield text, probability
            return
        for token, share in enumerate(next_of(text)):
            if share > 0:
                yield from extend((*text, token), probability * float(share))

    return dict(extend((), 1.0))


def chi_square(expected: Mapping[Sequence_, float], found: Counter[Sequence_]) -> tuple[float, int]:
    """Pearson's statistic and its degrees of freedom; the rarest cells are put together until at least 8 are expected."""
    count = sum(found.values())
    cells: list[tuple[float, int]] = []
    rest_expected, rest_found = 0.0, 0
    for text, probability in sorted(expected.items(), key=lambda item: item[1]):
        if rest_expected < 8 or probability * count < 8:
            rest_expected += probability * count
            rest_found += found[text]
        else:
            cells.append((probability * count, found[text]))
    cells.append((rest_expected, rest_found))
    return sum((seen - wanted) ** 2 / wanted for wanted, seen in cells), len(cells) - 1


def chi_square_limit(degrees: int, z: float = 4.75) -> float:
    """The statistic that chance exceeds with the probability that a normal variable exceeds ``z`` (Wilson and Hilferty 1931);
    4.75 is one in a million."""
    if degrees == 0:
        return 1e-6
    return float(degrees * (1 - 2 / (9 * degrees) + z * math.sqrt(2 / (9 * degrees))) ** 3)


def total_variation(expected: Mapping[Sequence_, float], found: Counter[Sequence_]) -> float:
    count = sum(found.values())
    return 0.5 * sum(abs(expected.get(text, 0.0) - found[text] / count) for text in set(expected) | set(found))


def total_variation_limit(expected: Mapping[Sequence_, float], count: int, alarm: float = 1e-6) -> float:
    """What the total variation of ``count`` draws exceeds with probability at most ``alarm``: the bound of its mean, plus what
    McDiarmid's inequality allows."""
    mean = 0.5 * sum(math.sqrt(p * (1 - p) / count) for p in expected.values())
    return mean + math.sqrt(math.log(1 / alarm) / (2 * count))


def prefixes(found: Counter[Sequence_], length: int) -> Counter[Sequence_]:
    """Counts of the first ``length`` tokens."""
    counts: Counter[Sequence_] = Counter()
    for text, number in found.items():
        counts[text[:length]] += number
    return counts


def prefix_shares(expected: Mapping[Sequence_, float], length: int) -> dict[Sequence_, float]:
    shares: dict[Sequence_, float] = {}
    for text, probability in expected.items():
        shares[text[:length]] = shares.get(text[:length], 0.0) + probability
    return shares


def ngrams(text: Sequence[int], size: int) -> set[Sequence_]:
    return {tuple(text[start : start + size]) for start in range(len(text) - size + 1)}
