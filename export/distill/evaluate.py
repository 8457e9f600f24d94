"""What a draft is worth end to end: a bundle with it answers prompts that it was not trained on, beside plain and n-gram decoding."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from edgespec.bench.measure import Measured, arms_of, measure
from edgespec.bench.prompts import OWN, Question, read_prompts
from edgespec.export.distill.config import EXPORT_OPTIONS, DistillConfig
from edgespec.export.distill.corpus import HELD
from edgespec.export.distill.pipeline import export_config
from edgespec.export.distill.workplace import Workplace
from edgespec.export.pipeline import export_bundle
from edgespec.runtime import load

PER_CATEGORY = 3
NEW_TOKENS = 128
REPETITIONS = 3


def arms(config: DistillConfig) -> dict[str, dict[str, Any]]:
    """The ways of decoding that are compared."""
    drafter = EXPORT_OPTIONS[config.kind]
    return arms_of(["ngram", f"{drafter}:{config.steps}", f"ngram,{drafter}", "auto"])


def held_questions(config: DistillConfig) -> list[Question]:
    """Prompts that nothing was trained on, so many of each category; the package's own where no corpus is left."""
    work = Workplace(config.output)
    if HELD not in work.shards():
        return read_prompts(OWN)
    shard = work.read_shard(HELD)
    found: dict[str, list[Question]] = {}
    for category, prompt in zip(shard.categories, shard.prompts, strict=True):
        chosen = found.setdefault(category, [])
        if prompt and len(chosen) < PER_CATEGORY:
            chosen.append(Question(category, prompt))
    return [question for _, chosen in sorted(found.items()) for question in chosen]


def evaluate(config: DistillConfig, questions: Sequence[Question], on_run: Callable[[int], None] = lambda _: None) -> Measured:
    """Export the target with the draft, and measure the bundle on this machine.

    Raises:
        UsageError: this version's runtime has no drafter of its kind.
    """
    with tempfile.TemporaryDirectory(dir=config.output.absolute().parent, prefix=f".{config.output.name}-evaluate-") as scratch:
        bundle = Path(scratch) / "bundle"
        option: dict[str, Any] = {EXPORT_OPTIONS[config.kind]: str(config.output)}
        export_bundle(dataclasses.replace(export_config(config, bundle), **option))
        return measure_bundle(config, bundle, questions, on_run=on_run)


def measure_bundle(
    config: DistillConfig,
    bundle: Path,
    questions: Sequence[Question],
    *,
    repetitions: int = REPETITIONS,
    on_run: Callable[[int], None] = lambda _: None,
) -> Measured:
    """Answer ``questions`` with a bundle that has the draft, in every way of decoding in turn."""
    with load(bundle) as engine:
        for arm in arms(config).values():
            engine.check_drafter(arm["drafter"])
        return measure(engine, questions, arms(config), repetitions=repetitions, max_new_tokens=NEW_TOKENS, on_run=on_run)
