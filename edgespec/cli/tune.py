"""``edgespec tune``: what does a pass cost here, which drafter pays, and with how many tokens?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgespec.bench.prompts import OWN, read_prompts
from edgespec.cli.bundle_argument import BUNDLE
from edgespec.cli.options import ENGINE_OPTIONS, open_engine, with_options
from edgespec.cli.output import facts, print_json, progress, table

if TYPE_CHECKING:
    from edgespec.bench.tune import DrafterTuning, Tuning


@click.command(short_help="Find the drafter and draft length that pay here.")
@click.argument("bundle", type=BUNDLE)
@click.option("--prompts", type=click.Path(path_type=Path), default=OWN, help="Questions, a JSON object a line as in Spec-Bench.")
@click.option("--questions", type=click.IntRange(1), help="Ask only so many, spread over the file.")
@click.option("--max-new-tokens", type=click.IntRange(2), default=96, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw costs, acceptance and speed (needs edgespec[bench]).")
@with_options(*ENGINE_OPTIONS)
def tune(bundle: Path, prompts: Path, questions: int | None, as_json: bool, plot: Path | None, **options: Any) -> None:
    """Measure passes of BUNDLE on this machine and how many tokens of each drafter are accepted, and say what pays best.

    What is found is kept: `run`, `chat` and the library begin with it.
    """
    from edgespec.bench.charts import check_chart_file, write_tuning_chart
    from edgespec.bench.tune import runs_of
    from edgespec.bench.tune import tune as tune_engine

    asked = read_prompts(prompts, questions)
    if plot is not None:
        check_chart_file(plot, "--plot")
    with open_engine(bundle, options) as engine:
        with progress("tuning", runs_of(engine, asked)) as advance:
            tuning = tune_engine(engine, asked, max_new_tokens=options["max_new_tokens"], on_run=advance)
        about = {"bundle": str(bundle), "machine": machine(), "threads": engine.threads}
    if plot is not None:
        write_tuning_chart(plot, tuning)
    if as_json:
        print_json({**about, **tuning.as_dict()})
        return
    click.echo(facts([(name, str(value)) for name, value in about.items()]))
    click.echo()
    if not tuning.quiet:
        click.echo("the machine was busy: costs are rough, and are not kept", err=True)
    click.echo(cost_table(tuning))
    click.echo()
    click.echo(drafter_table(tuning))
    click.echo()
    click.echo(choice(tuning))
    for reason in tuning.skipped:
        click.echo(f"left out: {reason}", err=True)


def machine() -> str:
    from edgespec.runtime.ort import import_onnxruntime
    from edgespec.runtime.tuning.machine import machine_name

    return f"{machine_name()}, ONNX Runtime {import_onnxruntime().__version__}"


def cost_table(tuning: Tuning) -> str:
    """Milliseconds of a pass by width, and over a pass of one token."""
    base = tuning.pass_ms[1]
    rows = [("ms", *(f"{ms:.2f}" for ms in tuning.pass_ms.values())), ("ratio", *(f"{ms / base:.2f}" for ms in tuning.pass_ms.values()))]
    return table(rows, ("tokens in the pass", *map(str, tuning.pass_ms)))


def drafter_table(tuning: Tuning) -> str:
    """A row for each drafter: its acceptance by position, and what pays."""
    longest = max(len(found.by_position) for found in tuning.drafters)
    header = ("drafter", "proposes", *(f"#{position}" for position in range(1, longest + 1)), "step ms", "best", "expected", "measured")
    return table([drafter_row(found, longest) for found in tuning.drafters], header)


def drafter_row(found: DrafterTuning, longest: int) -> tuple[str, ...]:
    shares = [f"{share:.0%}" for share in found.by_position]
    best, expected = ("own", "") if found.best_length is None else (str(found.best_length or "off"), f"{found.speedup:.2f}x")
    return (
        found.name,
        f"{found.proposes:.0%}",
        *shares,
        *[""] * (longest - len(shares)),
        f"{found.step_ms:.2f}" if found.step_ms else "",
        best,
        expected,
        f"{found.measured:.2f}x",
    )


def choice(tuning: Tuning) -> str:
    """What is best, in a sentence."""
    best = tuning.best
    default = f"the default drafters, which choose for themselves, measured {tuning.auto:.2f}x"
    if best is None:
        return f"no drafter gains anything here; {default}"
    how = ", which sizes its drafts itself, measured" if best.best_length is None else f" with {best.best_length} tokens, expected to be"
    return f"best by these figures: {best.name}{how} {best.speedup:.2f}x as fast as plain decoding; {default}"
