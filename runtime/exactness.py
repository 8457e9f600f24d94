"""Does a token's result depend on how many tokens share its pass? The self-test and the rule that follows from it.

A kernel may sum in another order when it gets one row instead of several, and quantised activations amplify the last
bit to logits that differ by about one. Speculation then writes another text than plain decoding. Which widths agree
differs by model, machine and build of ONNX Runtime, so it is tested: the same tokens are scored in passes of every
width, and widths that give the same bits (logits and cache rows) form a set. Plain decoding and speculation that use
only widths of one set give the same text. A pass of n tokens is padded to the narrowest width of the set that holds it.

Grades:
    exact   the largest set has at least two widths; passes use these
    near    no two widths agree. Any width is used, and texts can differ where two tokens are tied within ``difference``
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edgespec.runtime.model import PREFILL_WIDTH, Model

SPAN = 16  # positions that every narrow width is tested on
WIDE = (24, 32, 48, 64, 96, PREFILL_WIDTH)


@dataclasses.dataclass(frozen=True)
class Exactness:
    """Result of the self-test.

    Attributes:
        grade: "exact" or "near", see the module.
        widths: for "exact" the widths whose results are equal, else all that were tested.
        difference: the largest difference of a logit between any two narrow widths that were tested.
        lengths: numbers of valid cache rows at which it was tested.
    """

    grade: str
    widths: tuple[int, ...]
    difference: float
    lengths: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class WidthRule:
    """Which widths passes may have; ascending, at least one."""

    widths: tuple[int, ...]

    def fit(self, count: int, room: int) -> int | None:
        """The narrowest allowed width for ``count`` tokens, None if it is more than ``room``."""
        width = next((width for width in self.widths if width >= count), None)
        return width if width is not None and width <= room else None

    def widest(self, room: int) -> int:
        """The widest allowed width of at most ``room``, 0 if there is none."""
        return max((width for width in self.widths if width <= room), default=0)


def find_equal_widths(model: Model, vocabulary: int, lengths: Sequence[int] = (37, 200)) -> Exactness:
    """Run the self-test: about 300 narrow passes. The model's cache is empty afterwards.

    Args:
        model: the target; what its cache holds is lost.
        vocabulary: test tokens are drawn from 0..vocabulary-1.
        lengths: numbers of cache rows before the tested positions; those that do not fit are left out.
    """
    span = min(SPAN, model.spec.max_width)
    widest = min(model.max_pass, max(PREFILL_WIDTH, model.spec.max_width))
    narrow = list(range(1, span + 1))
    wide = sorted({width for width in (*WIDE, model.spec.max_width) if span < width <= widest})
    fitting = [length for length in lengths if length + 2 * span <= model.capacity] or [0]
    tokens = np.random.default_rng(0).integers(0, vocabulary, max(fitting) + widest + 2 * span).tolist()
    groups: list[set[int]] | None = None
    difference = 0.0
    for length in fitting:
        _fill(model, tokens, length)
        prints, apart = _narrow_prints(model, tokens, length, narrow, span)
        groups = _split(groups or [set(narrow)], prints)
        difference = max(difference, apart)
    best = max(groups or [set()], key=lambda group: (len(group), -min(group)))
    if len(best) < min(2, len(narrow)):
        model.keep(0)
        return Exactness("near", tuple(narrow + wide), difference, tuple(fitting))
    for length in fitting:
        _fill(model, tokens, length)
        wide = [width for width in wide if length + width > model.capacity or _wide_agrees(model, tokens, length, width, max(best))]
    model.keep(0)
    return Exactness("exact", tuple(sorted(best) + wide), difference, tuple(fitting))


def _fill(model: Model, tokens: Sequence[int], length: int) -> None:
    model.keep(0)
    for start in range(0, length, SPAN):
        model.run(tokens[start : min(start + SPAN, length)], [0])


def _narrow_prints(
    model: Model, tokens: Sequence[int], length: int, widths: Sequence[int], span: int
) -> tuple[dict[int, list[bytes] | None], float]:
    """For each width the fingerprints of ``span`` rows after ``length``, None if it does not even agree with itself.

    A width lays its passes side by side over the positions, and once more shifted by half a pass, so that a position is
    a different row of its pass. The second result is the largest difference of a logit from the widest width's.
    """
    reference: npt.NDArray[np.float32] | None = None
    difference = 0.0
    prints: dict[int, list[bytes] | None] = {}
    for width in sorted(widths, reverse=True):
        rows: dict[int, bytes] = {}
        agrees = True
        logits = np.zeros((span, model.spec.vocab_size), np.float32)
        starts = [*range(0, span, width), *range(width // 2, span - width // 2, width)]
        for start in starts:
            model.keep(length + start)
            out = model.run(tokens[length + start : length + start + width], range(width))
            for row in range(min(width, span - start)):
                position = start + row
                found = _print(model, out[row], length + position)
                agrees &= rows.setdefault(position, found) == found
                logits[position] = out[row]
        prints[width] = [rows[position] for position in range(span)] if agrees else None
        reference = logits if reference is None else reference
        difference = max(difference, float(np.abs(logits - reference).max()))
    return prints, difference


def _print(model: Model, logits: npt.NDArray[np.float32], position: int) -> bytes:
    digest = hashlib.blake2b(logits.tobytes(), digest_size=16)
    for rows in model.cache_rows(position, position + 1):
        digest.update(rows.tobytes())
    return digest.digest()


def _split(groups: list[set[int]], prints: dict[int, list[bytes] | None]) -> list[set[int]]:
    """Split each group by fingerprints. A width that does not agree with itself stands alone."""
    result: list[set[int]] = []
    for group in groups:
        classes: dict[object, set[int]] = {}
        for width in group:
            found = prints[width]
            classes.setdefault(width if found is None else tuple(found), set()).add(width)
        result.extend(classes.values())
    return result


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
