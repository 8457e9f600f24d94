"""``edgespec bench``: how fast is a bundle here, plain and with each drafter, by kind of question?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgespec.bench.measure import BASE, PLAIN, Measured, arms_of, measure
from edgespec.bench.prompts import OWN, read_prompts
from edgespec.cli.bundle_argument import BUNDLE
from edgespec.cli.options import ENGINE_OPTIONS, open_engine, with_options
from edgespec.cli.output import facts, print_json, progress, table
from edgespec.errors import UsageError

if TYPE_CHECKING:
    from edgespec.runtime import Engine


@click.command(short_help="Measure speed by drafter and kind of question.")
@click.argument("bundle", type=BUNDLE)
@click.option("--prompts", type=click.Path(path_type=Path), default=OWN, help="Questions, a JSON object a line as in Spec-Bench.")
@click.option("--questions", type=click.IntRange(1), help="Ask only so many, spread over the file.")
@click.option("--drafter", "drafters", multiple=True, metavar="NAME[,NAME][:K]", help="What to compare, several times; all unless given.")
@click.option("--max-new-tokens", type=click.IntRange(2), default=96, show_default=True)
@click.option("--repetitions", type=click.IntRange(1), default=3, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
@click.option("--html", "html_file", type=click.Path(path_type=Path), help="Write a report with charts (needs edgespec[bench]).")
@with_options(*ENGINE_OPTIONS)
def bench(bundle: Path, prompts: Path, questions: int | None, as_json: bool, html_file: Path | None, **options: Any) -> None:
    """Answer questions with BUNDLE in every way of decoding in turn, and compare speed and text with plain decoding.

    Ctrl-C ends the measurement; what is complete is shown.
    """
    asked = read_prompts(prompts, questions)
    if html_file is not None and not html_file.parent.is_dir():
        raise UsageError(f"--html: {html_file.parent}: no such folder")
    with open_engine(bundle, options) as engine:
        drafters = options["drafters"] or [name for name in engine.drafters if name != "none"]
        arms = arms_of(drafters)
        for arm in drafters:
            engine.check_drafter(arm.partition(":")[0])
        with progress("measuring", (len(asked) * options["repetitions"] + 1) * len(arms)) as advance:
            measured = measure(
                engine,
                asked,
                arms,
                repetitions=options["repetitions"],
                max_new_tokens=options["max_new_tokens"],
                on_run=advance,
            )
        if not measured.questions:
            raise UsageError(f"no question could be answered; {measured.skipped[0]}")
        about = describe(engine, bundle, options)
        if html_file is not None:
            write_report(html_file, engine, measured, about)
    if as_json:
        print_json({**about, **measured.as_dict()})
        return
    click.echo(facts([(name.replace("_", " "), str(value)) for name, value in about.items()]))
    click.echo()
    click.echo(speed_table(measured))
    for reason in measured.skipped:
        click.echo(f"left out: {reason}", err=True)


def describe(engine: Engine, bundle: Path, options: dict[str, Any]) -> dict[str, Any]:
    from edgespec.runtime.machine import machine_name
    from edgespec.runtime.memory.measure import usage
    from edgespec.runtime.ort import import_onnxruntime

    return {
        "bundle": str(bundle),
        "machine": machine_name(),
        "onnxruntime": import_onnxruntime().__version__,
        "threads": engine.threads,
        "max_new_tokens": options["max_new_tokens"],
        "repetitions": options["repetitions"],
        "peak_rss_bytes": usage().peak,
    }


def speed_table(measured: Measured) -> str:
    """A row for each category and arm."""
    rows = []
    for category in (None, *measured.categories):
        for index, arm in enumerate(measured.answers):
            answers = [a for q, a in zip(measured.questions, measured.answers[arm], strict=True) if category in (None, q.category)]
            drafted = sum(answer.drafted for answer in answers)
            speed = sorted(answer.decode_tokens_per_s for answer in answers)[len(answers) // 2]
            rows.append(
                (
                    (category or "all") if index == 0 else "",
                    arm,
                    f"{speed:.1f}",
                    f"{measured.speedup(arm, category):.2f}x",
                    f"{sum(answer.tokens_per_pass for answer in answers) / len(answers):.2f}",
                    f"{sum(answer.accepted for answer in answers) / drafted:.0%}" if drafted else "",
                    "" if arm in (BASE, PLAIN) else f"{sum(answer.equal for answer in answers)} of {len(answers)}",
                )
            )
    return table(rows, ("questions", "decoding", "tokens/s", "speed", "tokens/pass", "accepted", "equal to plain"))


def write_report(path: Path, engine: Engine, measured: Measured, about: dict[str, Any]) -> None:
    from edgespec.bench.report import html_report

    # Of the way of decoding that was fastest, among those that draft if there are any.
    drafting = [arm for arm in measured.answers if arm not in (BASE, PLAIN)] or [PLAIN]
    options = arms_of(drafting)[max(drafting, key=measured.speedup)]
    sample = list(engine.stream(measured.questions[-1].text, max_new_tokens=about["max_new_tokens"], **options))
    page = html_report(measured, about, engine.cost_curve, sample)
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        # The figures were dear: they are shown all the same.
        click.echo(speed_table(measured))
        raise UsageError(f"--html: {path}: cannot be written: {error.strerror}") from error
    click.echo(f"report: {path}", err=True)
