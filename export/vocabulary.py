"""A draft whose vocabulary is not the target's: which of its ids mean the same, and whether it cuts text alike."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from edgespec.errors import CheckpointError
from edgespec.export.tokenizer import Tokenizer
from edgespec.manifest import TokenizerSpec

LEAST_SHARED = 0.05  # of the draft's tokens; drafts of the usual families share more than half


@dataclasses.dataclass(frozen=True)
class OtherVocabulary:
    """Of a draft.

    Attributes:
        ids: the target's id of each of the draft's tokens, int32 [Vd], -1 where it has none.
        tokenizer: the draft's.
        alike: whether shared tokens have equal ids, as in models of one family that differ in their special tokens. They then
            cut text alike.
    """

    ids: np.ndarray
    tokenizer: Tokenizer
    alike: bool

    def save(self, folder: Path, model: str) -> tuple[str, TokenizerSpec | None]:
        """Write its files, named after the model: the name of that with the ids, and the tokenizer's description if there has to be one."""
        (folder / f"{model}.tokens").write_bytes(self.ids.astype("<i4").tobytes())
        return f"{model}.tokens", None if self.alike else self.tokenizer.save(folder, f"{model}_tokenizer.json")


def other_vocabulary(draft: Tokenizer, target: Tokenizer, rows: int, target_rows: int, name: str) -> OtherVocabulary | None:
    """How the draft's vocabulary, of a model with ``rows`` logits, lies in the target's. None if they are the same; the heads of the
    models may be padded differently all the same.

    Raises:
        CheckpointError: they have next to nothing in common.
    """
    if draft.fingerprint == target.fingerprint:
        return None
    own, wanted = draft.spellings(), target.spellings()
    ids = np.full(rows, -1, np.int32)
    for spelling, index in own.items():
        if index < rows and wanted.get(spelling, target_rows) < target_rows:
            ids[index] = wanted[spelling]
    shared = np.flatnonzero(ids >= 0)
    if len(shared) < LEAST_SHARED * len(own):
        raise CheckpointError(
            f"{name}: only {len(shared)} of its {len(own)} tokens are among the target's, so it could propose next to nothing; "
            "choose a draft whose tokenizer is of the same kind"
        )
    return OtherVocabulary(ids, draft, bool((ids[shared] == shared).all()) and draft.merges == target.merges)
