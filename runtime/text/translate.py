"""From the ids of one tokenizer to those of another, for a draft model that cuts text otherwise than the target.

The draft reads the same text: it is encoded anew with the draft's tokenizer, of which only the last part changes from round to
round. Ids that both have (the same bytes, or the same special token) are known from a file of the bundle.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgespec.errors import BundleError
from edgespec.manifest import ModelSpec
from edgespec.runtime.models.rows import Floats
from edgespec.runtime.models.token_map import TokenMap
from edgespec.runtime.text.tokenizer import Codec

TAIL = 24  # tokens of the target that are encoded again in each round, once a place to cut is found
INCOMPLETE = "\ufffd"  # how a character of which bytes are missing decodes


class SharedIds:
    """The ids that a draft shares with the target.

    Args:
        ids: the target's id, int [Vd], of each of the draft's, -1 where it has none.
        vocabulary: number of the target's ids, V.
    """

    def __init__(self, ids: npt.NDArray[np.int64], vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self._own = np.flatnonzero(ids >= 0)
        self._map = TokenMap(ids[self._own], vocabulary)
        self.of_target: dict[int, int] = dict(zip(ids[self._own].tolist(), self._own.tolist(), strict=True))

    def widen(self, row: Floats) -> Floats:
        """The draft's logits [Vd] as a row over the target's ids [V]; the next call overwrites it."""
        wide: Floats = self._map.widen(row[None, self._own])[0]
        return wide


def read_shared_ids(folder: Path, spec: ModelSpec, vocabulary: int) -> SharedIds:
    """The map of a bundle's draft model, with the target's ids below ``vocabulary``.

    Raises:
        BundleError: the file is not one of so many ids.
    """
    path = folder / str(spec.token_ids)
    size = path.stat().st_size
    if size != 4 * spec.vocab_size:
        raise BundleError(f"{path}: has {size} bytes where a map of {spec.vocab_size} tokens has {4 * spec.vocab_size}; export it again")
    ids = np.fromfile(path, "<i4").astype(np.int64)
    shared = ids[ids >= 0]
    if ids.min() < -1 or len(np.unique(shared)) < len(shared) or not (shared < vocabulary).any():
        raise BundleError(f"{path}: maps two tokens to one, or none at all; export the bundle again")
    return SharedIds(np.where(ids < vocabulary, ids, -1), vocabulary)


class Translator:
    """Follows one text, which only grows or starts anew.

    Args:
        target, draft: their tokenizers; None for the draft's where both cut text alike and only some ids differ.
        shared: ids that both have.
        prefix: ids that the draft's tokenizer puts before a text.
        skipped: ids with which the target's begins a text, which mean nothing to the draft.
    """

    def __init__(
        self, target: Codec, draft: Codec | None, shared: SharedIds, prefix: Sequence[int] = (), skipped: Sequence[int] = ()
    ) -> None:
        self.shared = shared
        self._target, self._draft = target, draft
        self._prefix, self._skipped = list(prefix), list(skipped)
        self._context: list[int] = []
        self._settled: list[int] = []
        """The draft's ids of what will not be encoded again: the first ``_anchor`` tokens of the target."""
        self._anchor = 0

    def follow(self, context: Sequence[int]) -> list[int] | None:
        """The draft's ids of the text, None while its last character is not complete."""
        if self._draft is None:
            return [self.shared.of_target[token] for token in context if token in self.shared.of_target]
        if list(context[: len(self._context)]) != self._context:
            self._anchor, self._settled = 0, []
        self._context = list(context)
        start = self._anchor or (len(self._skipped) if self._context[: len(self._skipped)] == self._skipped else 0)
        tail = self._target.spell(self._context[start:])
        if tail.endswith(INCOMPLETE):
            return None
        ids = self._draft.encode(tail)
        found = [*self._prefix, *self._settled, *ids]
        self._settle(start, tail, ids)
        return found

    def back(self, ids: Sequence[int], drafted: Sequence[int]) -> list[int]:
        """The target's ids of the text that the draft puts behind its own ``ids``."""
        assert self._draft is not None
        before = self._draft.spell(ids[-TAIL:])
        whole = self._draft.spell([*ids[-TAIL:], *drafted]).rstrip(INCOMPLETE)
        if not whole.startswith(before):
            return []
        # With some of the text before it, since many tokenizers begin a text otherwise than they go on.
        known = self._context[-TAIL:]
        again = self._target.encode(self._target.spell(known) + whole[len(before) :])
        found = again[len(known) :] if again[: len(known)] == known else self._target.encode(whole[len(before) :])
        unknown = next((index for index, token in enumerate(found) if token >= self.shared.vocabulary), len(found))
        return found[:unknown]

    def _settle(self, start: int, tail: str, ids: Sequence[int]) -> None:
        """Move the anchor to a place where both tokenizers cut, so that the two sides can be encoded apart."""
        assert self._draft is not None
        cut = len(self._context) - TAIL
        if cut < start + TAIL:
            return
        first, second = self._target.spell(self._context[start:cut]), self._target.spell(self._context[cut:])
        known = self._draft.encode(first)
        if first + second == tail and [*known, *self._draft.encode(second)] == list(ids):
            self._anchor, self._settled = cut, [*self._settled, *known]
