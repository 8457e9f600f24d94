"""What drafts would gain where passes have other costs: ``python -m benchmarks.modelled BUNDLE QUESTIONS``.

Where there are many cores for the memory bandwidth, a pass of a few tokens costs hardly more than a pass of one. Such a device is not at
hand, so its costs are given: texts are written here by a controller that is told these costs in place of what it would measure, and
their time is the sum of what is said of the passes and steps that they took. So tokens, passes and choices are real, and times are not.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click

import edgespec
from benchmarks.figures import median, row
from benchmarks.methods.results import balanced, kind_of
from edgespec.bench.measure import geometric_mean
from edgespec.bench.prompts import Question, read_prompts
from edgespec.bundle import open_bundle
from edgespec.errors import CapacityError, EdgespecError
from edgespec.manifest import Manifest
from edgespec.runtime.memory.weights import read_weights
from edgespec.runtime.tuning.cost import WIDTHS, Costs, RunningCosts


class Gain(NamedTuple):
    """Of an answer: speed over plain decoding in passes of one token."""

    speed: float
    tokens_per_pass: float


class GivenCosts(RunningCosts):
    """Costs that real rounds do not correct, in passes of one token; they add up what passes would have taken."""

    def __init__(self, costs: Costs) -> None:
        super().__init__(costs)
        self.spent = 0.0

    def saw_pass(self, width: int, seconds: float, first_step: bool = False) -> None:  # noqa: ARG002
        self.spent += self.of_width(width) + first_step * max(self.start.first_ms.values(), default=0.0)

    def saw_draft(self, drafter: str, tokens: int, seconds: float) -> None:
        """What drafting took here says nothing there."""


def given(manifest: Manifest, bundle: Path, four: float) -> Costs:
    """Costs of a device where a pass of four tokens costs ``four`` passes of one, and each more as much again; a step of a draft costs
    what its matrices are of the target's, since these are what is read."""
    weights = {name: read_weights(bundle / spec.graph) for name, spec in manifest.models.items()}
    size = {name: found.kept + found.packed for name, found in weights.items()}
    steps = {drafter.kind: size[drafter.model] / size["target"] for drafter in manifest.drafters if drafter.model is not None}
    inside = {drafter.kind for drafter in manifest.drafters if drafter.model is not None and manifest.models[drafter.model].fused}
    passes = {width: 1 + (width - 1) * (four - 1) / 3 for width in WIDTHS}
    return Costs(passes, steps, True, {kind: step for kind, step in steps.items() if kind in inside})


def modelled(bundle: Path, costs: Costs, drafter: str, asked: Sequence[Question], new_tokens: int) -> dict[str, list[Gain]]:
    """By kind what the drafter gains in each answer; those of one token and prompts that are too long for the bundle are left out."""
    steps = max(costs.draft_ms.values(), default=0.0)
    found: dict[str, list[Gain]] = defaultdict(list)
    with edgespec.load(bundle) as engine:
        running = GivenCosts(costs)
        engine._drafting.__dict__.update(costs=costs, running_costs=running)
        for question in asked:
            before = running.spent
            with contextlib.suppress(CapacityError):
                stats = engine.generate(question.text, drafter=drafter, max_new_tokens=new_tokens).stats
                if stats.target_passes:
                    spent = running.spent - before + stats.draft_passes * steps
                    found[kind_of(question)].append(Gain((stats.new_tokens - 1) / spent, stats.tokens_per_pass))
    return found


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path, exists=True))
@click.argument("questions", type=click.Path(path_type=Path, exists=True))
@click.option("--per-kind", type=click.IntRange(1), default=4, show_default=True, help="So many questions of each kind.")
@click.option("--new-tokens", type=click.IntRange(2), default=128, show_default=True)
@click.option("--drafter", "drafters", multiple=True, default=("auto", "ngram", "eagle"), show_default=True)
@click.option("--four", "fours", multiple=True, type=click.FloatRange(1), default=(1.05, 1.15), show_default=True)
def main(bundle: Path, questions: Path, per_kind: int, new_tokens: int, drafters: tuple[str, ...], fours: tuple[float, ...]) -> None:
    """Print the speed over plain decoding that DRAFTERS would have where a pass of four tokens costs so many (--four) passes of one."""
    try:
        asked = balanced(read_prompts(questions), per_kind)
        manifest = open_bundle(bundle)
        kinds = list(dict.fromkeys(kind_of(question) for question in asked))
        click.echo(
            f"{len(asked)} questions, at most {new_tokens} new tokens, greedy; speed over plain decoding, and in brackets tokens per pass"
        )
        click.echo(row(["four tokens", "drafter", "all, mean", "median", *kinds]) + "\n" + row(["---"] * (4 + len(kinds))))
        for four, drafter in itertools.product(fours, drafters):
            found = modelled(bundle, given(manifest, bundle, four), drafter, asked, new_tokens)
            speeds = [gain.speed for gains in found.values() for gain in gains]
            cells = [f"{geometric_mean(speeds):.2f}", f"{median(speeds):.2f}", *(cell(found[kind]) for kind in kinds)]
            click.echo(row([f"{four}", drafter, *cells]))
    except EdgespecError as error:
        raise click.ClickException(str(error)) from error


def cell(gains: Sequence[Gain]) -> str:
    return (
        f"{geometric_mean([gain.speed for gain in gains]):.2f} ({statistics.fmean(gain.tokens_per_pass for gain in gains):.2f})"
        if gains
        else ""
    )


if __name__ == "__main__":
    main()
