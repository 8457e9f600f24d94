"""Does a bundle keep its promise on this machine? Speculative text against plain text, drafter by drafter."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from edgespec.runtime.engine import Engine
from edgespec.runtime.exactness import Exactness
from edgespec.runtime.text.prompt import Prompt

PROMPTS = (
    "List three uses of a paperclip.",
    "Repeat after me: the cat sat on the mat, the cat sat on the hat, the cat sat on the bat.",
    "Write a Python function that adds the numbers from 1 to n.",
)


@dataclasses.dataclass(frozen=True)
class Case:
    """One prompt with one drafter. ``first_difference`` is the index of the first token that differs, None if none does."""

    prompt: int
    drafter: str
    draft_length: int
    tokens: int
    accepted: int
    first_difference: int | None


@dataclasses.dataclass(frozen=True)
class VerifyReport:
    """``ok`` says whether every speculative text equals the plain one."""

    exactness: Exactness
    cases: tuple[Case, ...]

    @property
    def ok(self) -> bool:
        return all(case.first_difference is None for case in self.cases)


def verify(
    engine: Engine,
    *,
    prompts: Sequence[Prompt] = PROMPTS,
    max_new_tokens: int = 48,
    exactness: str = "exact",
    on_case: Callable[[Case], None] | None = None,
) -> VerifyReport:
    """Repeat the self-test, then compare plain and speculative greedy text for every drafter of the bundle, with short,
    middling and longest drafts.

    ``on_case`` is told of each comparison as it is made, for a progress line.
    """
    engine.retest()
    most = engine.manifest.target.max_width - 1
    lengths = sorted({length for length in (1, 3, most) if 1 <= length <= most})
    cases: list[Case] = []
    for index, prompt in enumerate(prompts):
        plain = engine.generate(prompt, drafter="none", max_new_tokens=max_new_tokens, exactness=exactness)
        for drafter in engine.drafters:
            if drafter in ("none", "auto"):
                continue
            for length in lengths:
                found = engine.generate(prompt, drafter=drafter, draft_length=length, max_new_tokens=max_new_tokens, exactness=exactness)
                difference = first_difference(plain.token_ids, found.token_ids)
                cases.append(Case(index, drafter, length, len(found.token_ids), found.stats.accepted, difference))
                if on_case:
                    on_case(cases[-1])
    return VerifyReport(engine.exactness, tuple(cases))


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first token that differs, also where one text ends before the other; None if they are equal."""
    shorter = min(len(a), len(b))
    return next((index for index in range(shorter) if a[index] != b[index]), None if len(a) == len(b) else shorter)
