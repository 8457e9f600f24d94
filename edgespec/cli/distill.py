"""``edgespec distill``: a draft for a target, without data. The work is in edgespec.export.distill; here are its options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgespec.bench.summary import HEADER, speed_rows
from edgespec.cli.export import WEIGHTS, need_export_extras
from edgespec.cli.options import numbers
from edgespec.cli.output import facts, print_json, progress, table
from edgespec.errors import UsageError

if TYPE_CHECKING:
    from edgespec.export.distill import DistillConfig, DistillReport

PATH = click.Path(path_type=Path)


@click.command(short_help="Make a draft for a target, without data.")
@click.argument("target")
@click.option(
    "-o", "--output", required=True, type=PATH, help="Folder to make for the draft; OUTPUT.work beside it holds what is in the making."
)
@click.option("--kind", default="eagle", show_default=True, metavar="eagle|medusa|lm", help="What to make.")
@click.option("--minutes", type=float, help="Time to take, half of it for text and half for training; 60 unless given.")
@click.option("--tokens", type=int, help="Instead of time: tokens of answers; the same seed then gives the same draft.")
@click.option("--epochs", type=int, default=4, show_default=True, help="With --tokens: how often each is trained on.")
@click.option("--prompts", type=PATH, help="Prompts to answer first: a line each, or .jsonl as in Spec-Bench.")
@click.option("--text", "texts", type=PATH, multiple=True, help="A text to learn from besides; may be given several times.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--resume", is_flag=True, help="Go on with what stopped, with the same options; --minutes may be other ones.")
@click.option(
    "--evaluate", is_flag=True, help="Measure the draft end to end against plain and n-gram decoding; makes it first if it is not there."
)
@click.option(
    "--weights",
    type=WEIGHTS,
    default="int8",
    show_default=True,
    help="How the target is stored that the draft is for; fp32 is the float one.",
)
@click.option("--block-size", type=int, default=32, show_default=True, help="Of the target: weights that share a scale.")
@click.option("--context", type=int, help="Of the target: largest number of tokens in the KV cache.")
@click.option("--steps", type=int, default=3, show_default=True, help="Tokens in a row that the draft learns to foretell.")
@click.option("--vocabulary", type=int, help="Tokens that the draft can say; as many as cover the corpus unless given.")
@click.option(
    "--head",
    default="frozen",
    show_default=True,
    metavar="frozen|borrowed|trained",
    help="The draft's last matrix: the target's rows, the same but left out of the file (for edgespec only), or trained.",
)
@click.option(
    "--taps",
    callback=numbers("is not a list of layers, such as 2,15,27"),
    metavar="N,N,N",
    help="Layers in front of which an EAGLE head listens.",
)
@click.option("--intermediate", type=int, help="Width of an EAGLE head's gated unit; the target's unless given.")
@click.option("--layers", type=int, default=2, show_default=True, help="Depth of a standalone draft (lm).")
@click.option("--slots", type=int, default=32, show_default=True, help="Texts written side by side.")
@click.option("--answer-tokens", type=int, default=192, show_default=True, help="Most tokens of an answer.")
@click.option("--shard-texts", type=int, default=256, show_default=True, help="Texts between two savings.")
@click.option(
    "--space", type=int, default=8 * 10**9, show_default=True, help="Bytes of hidden states on disk; further ones are computed again."
)
@click.option("--batch-rows", type=int, default=2048, show_default=True, help="Tokens of a training batch.")
@click.option("--window", type=int, default=320, show_default=True, help="Tokens of a text that are trained on together.")
@click.option("--learning-rate", type=float, default=1e-3, show_default=True)
@click.option("--weight-decay", type=float, default=0.05, show_default=True)
@click.option("--precision", default="auto", show_default=True, metavar="auto|fp32|bf16", help="Of matrix products in the training.")
@click.option("--revision", help="Branch, tag or commit of a checkpoint on the Hub.")
@click.option("--trust-remote-code", is_flag=True, help="Run Python code that comes with the checkpoint. Only if you trust its author.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.option("--quiet", is_flag=True, help="No progress and no summary.")
def distill(as_json: bool, **options: Any) -> None:
    """Make a draft for TARGET by letting it write, and training on what it wrote.

    TARGET is a model id on the Hugging Face Hub, a local checkpoint folder, or a .gguf file. The draft goes into
    `edgespec export --eagle`, `--medusa` or `--draft`. Several processes or GPUs: start this with `accelerate launch`.
    """
    need_export_extras()
    from edgespec.export.distill import DistillConfig
    from edgespec.export.distill import distill as make

    config = DistillConfig(**options)
    if not (config.evaluate and config.output.is_dir()):
        report = make(config)
        if report is None:
            return
        if as_json and not config.evaluate:
            print_json(summary(report))
        elif not config.quiet:
            click.echo(facts(report_facts(config, report)), err=True)
    if config.evaluate:
        show_evaluation(config, as_json)


def show_evaluation(config: DistillConfig, as_json: bool) -> None:
    from edgespec.export.distill.evaluate import REPETITIONS, arms, evaluate, held_questions

    questions = held_questions(config)
    with progress("measuring", (len(questions) * REPETITIONS + 1) * len(arms(config)), not config.quiet) as advance:
        measured = evaluate(config, questions, advance)
    if not measured.questions:
        raise UsageError(f"no question could be answered; {measured.skipped[0]}")
    if as_json:
        print_json(measured.as_dict())
        return
    click.echo(table(speed_rows(measured), HEADER))
    for reason in measured.skipped:
        click.echo(f"left out: {reason}", err=True)


def summary(report: DistillReport) -> dict[str, Any]:
    return {
        "output": str(report.output),
        "held_out": report.verdict.as_dict(),
        "answer_tokens": report.answer_tokens,
        "vocabulary": report.vocabulary,
        "coverage": report.coverage,
        "steps": report.state.step,
        "best_step": report.state.best_step,
        "expected_speedup": report.expected_speedup,
        "draft_length": report.draft_length,
    }


def report_facts(config: DistillConfig, report: DistillReport) -> list[tuple[str, str]]:
    from edgespec.export.distill.config import EXPORT_OPTIONS

    found = report.verdict.all
    promised = f"{report.expected_speedup:.2f}x with {report.draft_length} tokens drafted, by this machine's cost curve"
    return [
        ("draft", str(report.output)),
        ("trained on", f"{report.answer_tokens:,} answer tokens, {report.state.step} steps"),
        (
            "held out",
            f"{found.tokens_per_pass:.2f} tokens per pass; right by place {', '.join(f'{share:.0%}' for share in found.by_position)}",
        ),
        ("expected", promised if report.expected_speedup else "no costs were measured"),
        ("next", f"edgespec export {config.target} --{EXPORT_OPTIONS[config.kind]} {report.output} -o BUNDLE"),
        ("left behind", f"{report.output}.work, which can be removed"),
    ]
