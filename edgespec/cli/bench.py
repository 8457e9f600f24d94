"""``edgespec bench``: how fast is a bundle here, plain and with each drafter, by kind of question?"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgespec.bench.measure import BASE, PLAIN, Measured, arms_of, measure
from edgespec.bench.prompts import OWN, read_prompts
from edgespec.bench.summary import HEADER, speed_rows
from edgespec.cli.bundle_argument import BUNDLE
from edgespec.cli.options import ENGINE_OPTIONS, open_engine, with_options
from edgespec.cli.output import facts, print_json, progress, table
from edgespec.errors import UsageError

if TYPE_CHECKING:
    from edgespec.runtime import Engine
    from edgespec.runtime.memory.trace import MemoryTrace


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
    if html_file is not None:
        from edgespec.bench.report import check_report_file, write_page

        check_report_file(html_file, "--html")
    with open_engine(bundle, options) as engine:
        drafters = options["drafters"] or [name for name in engine.drafters if name != "none"]
        arms = arms_of(drafters)
        for arm in drafters:
            engine.check_drafter(arm.partition(":")[0])
        with (
            progress("measuring", (len(asked) * options["repetitions"] + 1) * len(arms)) as advance,
            tracing(arms, advance) as (memory, on_run),
        ):
            measured = measure(
                engine,
                asked,
                arms,
                repetitions=options["repetitions"],
                max_new_tokens=options["max_new_tokens"],
                on_run=on_run,
            )
        if not measured.questions:
            raise UsageError(f"no question could be answered; {measured.skipped[0]}")
        about = describe(engine, bundle, options)
        if html_file is not None:
            page = make_page(engine, measured, about, memory)
    # The figures were dear: they are shown also where the report cannot be written.
    show(measured, about, as_json)
    if html_file is not None:
        write_page(html_file, page, "--html")
        click.echo(f"report: {html_file}", err=True)


def show(measured: Measured, about: dict[str, Any], as_json: bool) -> None:
    """Print what was measured."""
    if as_json:
        print_json({**about, **measured.as_dict()})
        return
    click.echo(facts([(name.replace("_", " "), str(value)) for name, value in about.items()]))
    click.echo()
    click.echo(table(speed_rows(measured), HEADER))
    for reason in measured.skipped:
        click.echo(f"left out: {reason}", err=True)


def describe(engine: Engine, bundle: Path, options: dict[str, Any]) -> dict[str, Any]:
    from edgespec.runtime.memory.measure import usage
    from edgespec.runtime.ort import import_onnxruntime
    from edgespec.runtime.tuning.machine import machine_name

    return {
        "bundle": str(bundle),
        "machine": machine_name(),
        "onnxruntime": import_onnxruntime().__version__,
        "threads": engine.threads,
        "max_new_tokens": options["max_new_tokens"],
        "repetitions": options["repetitions"],
        "peak_rss_bytes": usage().peak,
    }


@contextlib.contextmanager
def tracing(arms: Iterable[str], advance: Callable[[int], None]) -> Iterator[tuple[MemoryTrace, Callable[[int], None]]]:
    """A trace of memory, and what is to be called after each run: ``advance`` and a sample, the first run of each arm by its name."""
    from edgespec.runtime.memory.trace import MemoryTrace

    names = iter(arms)
    with MemoryTrace(by_itself=False) as trace:

        def on_run(count: int) -> None:
            advance(count)
            name = next(names, None)
            if name is None:
                trace.take()
            else:
                trace.mark(name)

        yield trace, on_run


def make_page(engine: Engine, measured: Measured, about: dict[str, Any], memory: MemoryTrace) -> str:
    """The report, with a sample of the way of decoding that was fastest, among those that draft if there are any."""
    from edgespec.bench.report import html_report
    from edgespec.bench.sample import answer_with_origins

    drafting = [arm for arm in measured.answers if arm not in (BASE, PLAIN)] or [PLAIN]
    best = max(drafting, key=measured.speedup)
    stream = engine.stream(measured.questions[-1].text, max_new_tokens=about["max_new_tokens"], **arms_of(drafting)[best])
    return html_report(measured, about, engine.cost_curve, (best, answer_with_origins(stream)), memory)
