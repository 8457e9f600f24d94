"""A draft's reduced vocabulary: it scores some of the target's tokens, and a file of the bundle says which."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgespec.errors import BundleError
from edgespec.manifest import ModelSpec
from edgespec.runtime.models.rows import Floats

UNSCORED = np.float32(-1e9)
"""Score of a token that the draft does not know: a finite one, whose probability is exactly 0 beside any that it knows."""


class TokenMap:
    """Takes a draft's logits to the target's vocabulary.

    Args:
        ids: the target's id, [Vd], of each of the draft's.
        vocabulary: number of the target's ids, V.
    """

    def __init__(self, ids: npt.NDArray[np.int64], vocabulary: int) -> None:
        self.ids = ids
        self.vocabulary = vocabulary
        self._wide: Floats = np.zeros((0, 0), np.float32)

    def widen(self, logits: Floats) -> Floats:
        """Logits [n, Vd] as [n, V]; a view that the next call overwrites."""
        if len(logits) > len(self._wide):
            self._wide = np.full((len(logits), self.vocabulary), UNSCORED)
        self._wide[: len(logits), self.ids] = logits  # the others keep their score
        return self._wide[: len(logits)]


def read_token_map(folder: Path, spec: ModelSpec, vocabulary: int) -> TokenMap | None:
    """The map of a bundle's model, None if its ids are those of the target, of which there are ``vocabulary``.

    Raises:
        BundleError: the file is not one of so many different ids.
    """
    if spec.token_ids is None:
        return None
    path = folder / spec.token_ids
    size = path.stat().st_size
    if size != 4 * spec.vocab_size:
        wanted = f"a map of {spec.vocab_size} tokens has {4 * spec.vocab_size}"
        raise BundleError(f"{path}: has {size} bytes where {wanted}; export the bundle again")
    ids = np.fromfile(path, "<i4").astype(np.int64)
    if ids.min() < 0 or ids.max() >= vocabulary or len(np.unique(ids)) != len(ids):
        raise BundleError(f"{path}: maps to a token twice or to one that the target's {vocabulary} do not have; export the bundle again")
    return TokenMap(ids, vocabulary)
