"""Texts with drafts beside those of plain decoding, and what passes a model runs for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgespec.runtime import Engine, load
from edgespec.runtime.models.model import Model

COUNT = 30  # tokens of a text


def assert_plain_text(
    engine: Engine,
    prompts: Sequence[list[int]],
    drafters: Sequence[str] = ("draft", "ngram", "tree"),
    lengths: Sequence[int | str] = (4, "auto"),
) -> None:
    """Every drafter writes what plain decoding on the same engine does."""
    for prompt in prompts:
        plain = engine.generate(prompt, drafter="none", max_new_tokens=COUNT, ignore_eos=True)
        for drafter in drafters:
            for length in lengths:
                found = engine.generate(prompt, drafter=drafter, draft_length=length, max_new_tokens=COUNT, ignore_eos=True)
                assert found.token_ids == plain.token_ids, (drafter, length, engine.exactness)


def assert_a_draft_elsewhere_serves(bundle: Path, prompt: list[int], **place: Any) -> None:
    """With its draft where ``place`` says and its target as usual, the bundle writes what the target does alone. The draft is the target
    itself, so all of it is accepted."""
    with load(bundle, threads=1) as engine:
        plain = engine.generate(prompt, drafter="none", max_new_tokens=COUNT, ignore_eos=True)
    with load(bundle, threads=1, **place) as engine:
        found = engine.generate(prompt, drafter="draft", draft_length=4, max_new_tokens=COUNT, ignore_eos=True)
    assert found.token_ids == plain.token_ids
    assert found.stats.accepted == found.stats.drafted > 0


def counted_tokens(model: Model) -> list[int]:
    """Filled with the number of tokens of each pass of a model from now on."""
    run = model.run
    ran: list[int] = []

    def counted(tokens: list[int], *more: Any, **others: Any) -> Any:
        ran.append(len(tokens))
        return run(tokens, *more, **others)

    model.run = counted  # type: ignore[method-assign]
    return ran
