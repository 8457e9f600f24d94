"""Does a token's result depend on how many tokens share its pass? The self-test and the rule that follows from it.

A kernel may sum in another order when it gets one row instead of several, and quantised activations amplify the last
bit to logits that differ by about one. Speculation then writes another text than plain decoding. Which widths agree
differs by model, machine and build of ONNX Runtime, so it is tested: the same tokens are scored in passes of every
width, and widths that give the same bits (logits and cache rows) form a set. Plain decoding and speculation that use
only widths of one set give the same text. A pass of n tokens is padded to the narrowest width of the set that holds it.
Where one token alone differs from all others only because attention has a kernel of its own for one row, attention gets
a second row, and nothing else does.

Grades:
    exact    the largest set has at least two widths; passes use these
    checked  no two widths agree, but all differ by next to nothing, as float32 arithmetic does. Any width is used, and a row whose two
             best tokens are nearer than ``margin`` is scored again, as plain decoding would, before a token is committed
    fast     no two widths agree, and differences are not small: texts part where two tokens are tied within ``difference``.
             Quantised activations do this; re-scoring would then be the rule and not the exception. So do graphs that compute with
             16-bit whole numbers: there a difference shows in one row of many, too seldom for a self-test
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgespec.runtime.models.model import PREFILL_WIDTH, Model

SPAN = 16  # positions that every narrow width is tested on
WIDE = (24, 32, 64, PREFILL_WIDTH)
TINY = 1e-3  # a difference over the standard deviation of what differs: float32 stays a tenth of it, 8-bit activations are at 0.1
MOST_IDS = 4096
SAFETY = 8.0  # differences add up over the rows of a text, and the self-test saw a few only

Prints = dict[int, bytes]
"""Fingerprint of the logits and cache row of a position."""


@dataclasses.dataclass(frozen=True)
class Exactness:
    """Result of the self-test.

    Attributes:
        grade: "exact", "checked" or "fast", see the module.
        widths: for "exact" the widths whose results are equal, else all that were tested.
        difference: the largest difference of a logit between any two narrow widths that were tested.
        lengths: numbers of valid cache rows at which it was tested.
        pads: whether a pass of one token is equal to the others only if attention gets a second row.
    """

    grade: str
    widths: tuple[int, ...]
    difference: float
    lengths: tuple[int, ...]
    pads: bool = False

    @property
    def margin(self) -> float:
        """Under "checked" a wide pass cannot have turned over two logits that are farther apart."""
        return SAFETY * self.difference


@dataclasses.dataclass(frozen=True)
class WidthRule:
    """Which widths passes may have; ascending, at least one. With ``pads`` attention of a pass of one token has two rows."""

    widths: tuple[int, ...]
    pads: bool = False

    def rows(self, width: int) -> int:
        """How many cache rows a pass of ``width`` needs."""
        return 2 if self.pads and width == 1 else width

    @property
    def least_rows(self) -> int:
        """How many cache rows the narrowest pass needs."""
        return self.rows(self.widths[0])

    def fit(self, count: int, room: int) -> int | None:
        """The narrowest allowed width for ``count`` tokens, None if it needs more rows than ``room``."""
        width = next((width for width in self.widths if width >= count), None)
        return width if width is not None and self.rows(width) <= room else None

    def widest_or_least(self, most: int) -> int:
        """The widest allowed width of at most ``most``, the narrowest of all if there is none."""
        return self.widest(most) or self.widths[0]

    def widest(self, room: int) -> int:
        """The widest allowed width that ``room`` rows are enough for, 0 if there is none."""
        return next((width for width in reversed(self.widths) if self.rows(width) <= room), 0)


def find_equal_widths(model: Model, vocabulary: int, lengths: Sequence[int] = (37, 300)) -> Exactness:
    """Run the self-test: about a hundred narrow passes and a few wide ones. The model's cache is empty afterwards.

    Args:
        model: the target; what its cache holds is lost.
        vocabulary: test tokens are drawn from 0..vocabulary-1.
        lengths: numbers of cache rows before the tested positions; those that do not fit are left out. At the first one
            each width is laid side by side over all positions, at the others it is tried at both ends of them.
    """
    model.attends_alone = True
    span = min(SPAN, model.spec.max_width)
    narrow = list(range(1, span + 1))
    wide = sorted({width for width in (*WIDE, model.spec.max_width) if span < width <= model.max_pass})
    fitting = [length for length in lengths if length + 2 * span <= model.capacity] or [0]
    # Of a large vocabulary the first ids only, so that the test does not map the whole embedding.
    tokens = np.random.default_rng(0).integers(0, min(vocabulary, MOST_IDS), max(fitting) + model.max_pass + 2 * span).tolist()
    prints: dict[int, Prints | None] = {width: {} for width in narrow}
    difference = relative = 0.0
    for length in fitting:
        _fill(model, tokens, length)
        found = _try_widths(model, tokens, length, span, prints, thorough=length == fitting[0])
        difference, relative = max(difference, found[0]), max(relative, found[1])
    if model.spec.kv_dtype == "uint16":  # Rounding hides nearly every difference there is, so that to see none proves nothing.
        model.keep(0)
        return Exactness("fast", tuple(narrow + wide), difference, tuple(fitting))
    best = _largest_set(prints)
    if len(best) < min(2, len(narrow)):
        model.keep(0)
        return Exactness("checked" if relative <= TINY else "fast", tuple(narrow + wide), difference, tuple(fitting))
    pads = 1 not in best and model.can_pad and _agrees_padded(model, tokens, fitting, span, best[-1])
    if pads:
        best = [1, *best]
    _fill(model, tokens, fitting[0])
    proven = [width for width in wide if fitting[0] + width > model.capacity or _wide_agrees(model, tokens, fitting[0], width, best[-1])]
    model.keep(0)
    return Exactness("exact", (*best, *proven), difference, tuple(fitting), pads)


def _fill(model: Model, tokens: Sequence[int], length: int) -> None:
    model.keep(0)
    for start in range(0, length, model.chunk):
        chunk = tokens[start : min(start + model.chunk, length)]
        model.run(chunk, [len(chunk) - 1])


def _try_widths(
    model: Model, tokens: Sequence[int], length: int, span: int, prints: dict[int, Prints | None], *, thorough: bool
) -> tuple[float, float]:
    """Score ``span`` positions after ``length`` with every width and add the fingerprints of their rows to ``prints``.

    A width's entry becomes None if it does not even agree with itself: a position is tried as different rows of a
    pass. Returns the largest difference of a logit from the widest width's, and the largest of logits and cache rows in
    standard deviations.
    """
    reference: npt.NDArray[np.float32] | None = None
    cache: list[npt.NDArray[Any]] = []
    difference = relative = 0.0
    for width in sorted(prints, reverse=True):
        starts = [*range(0, span - width + 1, width), span - width] if thorough else [span - width, 0]
        for start in dict.fromkeys(starts):
            model.keep(length + start)
            out = model.run(tokens[length + start : length + start + width], range(width))
            rows = model.cache_rows(length + start, length + start + width)
            if model.trees_apart and not _tree_agrees(model, tokens[length + start : length + start + width], out, rows):
                prints[width] = None
            if reference is None:
                reference, cache = out.copy(), rows
            moved = float(np.abs(out - reference[start : start + width]).max())
            difference = max(difference, moved)
            parts = [_relative(array, whole[:, :, start : start + width]) for array, whole in zip(rows, cache, strict=True)]
            relative = max([relative, _relative(out, reference[start : start + width]), *parts])
            for row in range(width):
                position = length + start + row
                found = _print(model, out[row], position)
                own = prints[width]
                if own is not None and own.setdefault(position, found) != found:
                    prints[width] = None
        if not thorough and width > 1:
            # The next width's first pass builds on cache rows that it does not make itself: let them be the reference's.
            model.keep(length)
            model.run(tokens[length : length + span], [0])
    return difference, relative


def _tree_agrees(model: Model, tokens: Sequence[int], logits: npt.NDArray[np.float32], rows: Sequence[npt.NDArray[Any]]) -> bool:
    """Whether a tree that is a chain, which another graph runs, leaves the bits of the chain that was run last. The cache is as it was."""
    start, width = model.length - len(tokens), len(tokens)
    wanted = logits.copy()
    model.keep(start)
    found = model.run(tokens, range(width), range(-1, width - 1))
    same = all(np.array_equal(a, b) for a, b in zip(model.cache_rows(start, start + width), rows, strict=True))
    return np.array_equal(found, wanted) and same


def _relative(found: npt.NDArray[Any], reference: npt.NDArray[Any]) -> float:
    """The largest difference in standard deviations of the reference."""
    moved = float(np.abs(np.subtract(found, reference, dtype=np.float32)).max())  # of 8-bit rows, too
    return moved / float(reference.std() or 1e-30) if moved else 0.0


def _print(model: Model, logits: npt.NDArray[np.float32], position: int) -> bytes:
    digest = hashlib.blake2b(logits.tobytes(), digest_size=16)
    for rows in model.cache_rows(position, position + 1):
        digest.update(rows.tobytes())
    return digest.digest()


def _largest_set(prints: dict[int, Prints | None]) -> list[int]:
    """The widths, ascending, that agree with one of them at every position that both were tried at."""

    def agree(a: int, b: int) -> bool:
        first, second = prints[a], prints[b]
        return first is not None and second is not None and all(first[key] == second[key] for key in first.keys() & second.keys())

    sets = [[width for width in sorted(prints) if agree(width, other)] for other in sorted(prints)]
    return max(sets, key=len)


def _agrees_padded(model: Model, tokens: Sequence[int], lengths: Sequence[int], span: int, width: int) -> bool:
    """Whether passes of one token, with a second row in attention, leave the logits and cache rows of passes of ``width``."""
    prints: dict[int, Prints | None] = {1: {}, width: {}}
    model.attends_alone = False
    try:
        for length in lengths:
            _fill(model, tokens, length)
            _try_widths(model, tokens, length, span, prints, thorough=length == lengths[0])
    finally:
        model.attends_alone = True
    return len(_largest_set(prints)) == len(prints)


def _wide_agrees(model: Model, tokens: Sequence[int], length: int, width: int, reference: int) -> bool:
    """Whether one pass of ``width`` leaves the logits (of a few rows) and the cache of passes of ``reference``."""
    sample = sorted({0, width // 2, width - 2, width - 1})
    expected = []
    for start in range(0, width, reference):
        model.keep(length + start)
        if length + start + reference > model.capacity:
            return False
        out = model.run(tokens[length + start : length + start + reference], range(reference))
        expected += [out[row - start].copy() for row in sample if start <= row < start + reference]
    cache = model.cache_rows(length, length + width)
    model.keep(length)
    out = model.run(tokens[length : length + width], sample)
    same = all(np.array_equal(a, b) for a, b in zip(expected, out, strict=True))
    return same and all(np.array_equal(a, b) for a, b in zip(cache, model.cache_rows(length, length + width), strict=True))
