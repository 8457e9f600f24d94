"""Methods side by side: ``python -m benchmarks.methods BUNDLE QUESTIONS``. See the package's docstring."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

import edgespec
from benchmarks.methods.arms import Modes, bundle_with, groups_of
from benchmarks.methods.results import ResultFile, balanced
from benchmarks.methods.table import tables
from benchmarks.peers.process import Worker
from edgespec.bench.prompts import Question, read_prompts
from edgespec.bundle import bundle_key, open_bundle
from edgespec.cli.output import progress
from edgespec.errors import EdgespecError
from edgespec.runtime.cores import default_threads
from edgespec.runtime.ort import import_onnxruntime
from edgespec.runtime.tuning.machine import machine_name

SCRIPT = Path(__file__).parents[1] / "peers" / "run_edgespec.py"


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path, exists=True))
@click.argument("questions", type=click.Path(path_type=Path, exists=True))
@click.option("--output", type=click.Path(path_type=Path), required=True, help="Answers so far are read from here and new ones added.")
@click.option("--limit", type=click.IntRange(1), help="Ask only so many questions, spread over the file.")
@click.option("--per-kind", type=click.IntRange(1), help="Ask so many of each kind, kinds in turns, so that a part of it is balanced.")
@click.option("--new-tokens", type=click.IntRange(2), default=128, show_default=True)
@click.option("--drafter", "drafters", multiple=True, help="Only this one, and plain decoding; may be given several times.")
@click.option("--exactness", type=click.Choice(["exact", "fast", "both"]), default="both", show_default=True)
@click.option("--threads", type=click.IntRange(1), default=default_threads(), show_default=True)
@click.option("--table-only", is_flag=True, help="Ask nothing, print the tables of the answers so far.")
def main(bundle: Path, questions: Path, output: Path, limit: int | None, per_kind: int | None, table_only: bool, **options: Any) -> None:
    """Ask every method of BUNDLE every question of QUESTIONS (Spec-Bench's format), greedy, and print tables by kind of question.

    An answer is kept at once, so the same command goes on where it was stopped; Ctrl-C shows what is complete.
    """
    try:
        asked = read_prompts(questions, limit)
        if per_kind is not None:
            asked = balanced(asked, per_kind)
        kinds = ("exact", "fast") if options["exactness"] == "both" else (options["exactness"],)
        groups = groups_of(open_bundle(bundle), options["drafters"], kinds)
        methods = [method for modes in groups.values() for method in modes]
        about = {
            "bundle": bundle_key(bundle),
            "machine": machine_name(),
            "onnxruntime": import_onnxruntime().__version__,
            "threads": options["threads"],
            "new_tokens": options["new_tokens"],
            "methods": methods,
        }
        kept = ResultFile(output, about)
        missing = [] if table_only else kept.missing(asked)
        if missing:
            with tempfile.TemporaryDirectory(dir=output.absolute().parent) as folder:
                bundles = {bundle_with(models, bundle, Path(folder)): modes for models, modes in groups.items()}
                ask(kept, bundles, with_ids(bundle, missing, options["new_tokens"]), options)
    except EdgespecError as error:
        raise click.ClickException(str(error)) from error
    report(kept, asked, methods)


def with_ids(bundle: Path, questions: Sequence[Question], new_tokens: int) -> list[tuple[Question, list[int]]]:
    """Questions and their token ids; those for which the cache has no room are told and left out."""
    found = []
    with edgespec.load(bundle) as engine:
        for question in questions:
            ids = engine.encode(question.text)
            if len(ids) + new_tokens > engine.capacity:
                click.echo(f"left out, {len(ids)} tokens are too long: {question.text[:40]!r}", err=True)
            else:
                found.append((question, ids))
    return found


def ask(kept: ResultFile, bundles: dict[Path, Modes], questions: list[tuple[Question, list[int]]], options: dict[str, Any]) -> None:
    """Every method answers every question, in turns that begin with another method each time. Ctrl-C and SIGTERM end it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), started(bundles, options["threads"]) as workers:
        order = list(workers)
        for method in order:  # warms up, and measures once what engines measure of a machine
            workers[method].ask(method, questions[0][1], min(16, options["new_tokens"]))
        with progress("asking", len(questions)) as advance:
            for number, (question, ids) in enumerate(questions):
                first = number % len(order)
                answers = {}
                for method in (*order[first:], *order[:first]):
                    answers[method] = workers[method].ask(method, ids, options["new_tokens"])
                kept.add(question, answers)
                advance(1)


@contextlib.contextmanager
def started(bundles: dict[Path, Modes], threads: int) -> Iterator[dict[str, Worker]]:
    """The process of each method."""
    workers: dict[str, Worker] = {}
    try:
        for bundle, modes in bundles.items():
            worker = Worker([sys.executable, str(SCRIPT), str(bundle), str(threads), json.dumps(modes)])
            workers |= dict.fromkeys(modes, worker)
        yield workers
    finally:
        for worker in set(workers.values()):
            worker.close()


def report(kept: ResultFile, asked: Sequence[Question], methods: Sequence[str]) -> None:
    """Print the tables."""
    if not kept.lines:
        raise click.ClickException("no question was answered")
    about = kept.about
    click.echo(
        f"{about['machine']}, ONNX Runtime {about['onnxruntime']}, {about['threads']} threads; "
        f"{len(kept.lines)} questions, at most {about['new_tokens']} new tokens, greedy"
    )
    if unanswered := len(kept.missing(asked)):
        click.echo(f"\nPARTIAL: {unanswered} of {len(asked)} questions have no answers yet; the same command goes on with them")
    click.echo("\n" + tables(kept.results(), methods))


if __name__ == "__main__":
    main()
