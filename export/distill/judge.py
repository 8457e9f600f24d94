"""How well a draft foretells answers that it was not trained on."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from edgespec.export.distill.acceptance import Acceptance, walk
from edgespec.export.distill.batches import Batches
from edgespec.export.distill.students import Student


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Acceptance over all held-out answers and by category."""

    all: Acceptance
    categories: dict[str, Acceptance]

    def as_dict(self) -> dict[str, Any]:
        return {"all": self.all.as_dict(), **{name: found.as_dict() for name, found in sorted(self.categories.items())}}


def judge(student: Student, held: Batches) -> Verdict:
    """Walk over the answers that are the target's most likely ones; others say nothing about greedy decoding."""
    found = Acceptance.none(student.steps)
    categories: dict[str, Acceptance] = {}
    device = next(student.parameters()).device
    for shard, windows in held.in_order():
        chosen = [window for window in windows if shard.greedy[window.text]]
        if not chosen:
            continue
        with torch.no_grad():
            right = student.right(held.load(chosen).to(device)).cpu().numpy()
        for row, window in enumerate(chosen):
            # Row j guesses the token j + 2, and the first answer token is known before any draft.
            answer = walk(right[:, row, int(shard.starts[window.text]) - 1 : window.end - 1])
            found.add(answer)
            categories.setdefault(shard.categories[window.text], Acceptance.none(student.steps)).add(answer)
    return Verdict(found, categories)
