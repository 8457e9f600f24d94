"""What a pass costs by width, for bundles side by side: ``python -m benchmarks.passes BUNDLE [BUNDLE ...]``.

Prints the 10th percentile in milliseconds and its ratio to a pass of one token. Every bundle takes its turn in every round.
"""

from __future__ import annotations

import time
from pathlib import Path

import click

from benchmarks.figures import p10
from edgespec.bundle import open_bundle
from edgespec.runtime.cores import default_threads
from edgespec.runtime.models.model import Model
from edgespec.runtime.providers.session import DEFAULT_PROVIDERS
from edgespec.runtime.tuning.machine import machine_name

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
PREFILL = 128


@click.command()
@click.argument("bundles", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--past", default=128, show_default=True, help="Valid cache rows before the pass.")
@click.option("--rounds", default=30, show_default=True)
@click.option("--threads", default=default_threads(), show_default=True)
def main(bundles: tuple[Path, ...], past: int, rounds: int, threads: int) -> None:
    import onnxruntime

    models = []
    for bundle in bundles:
        spec = open_bundle(bundle).target
        models.append(Model(bundle / spec.graph, spec, capacity=min(spec.capacity, 2048), threads=threads, providers=DEFAULT_PROVIDERS))
    times: list[dict[int, list[float]]] = [{width: [] for width in (*WIDTHS, PREFILL)} for _ in models]
    tokens = list(range(5, 5 + PREFILL))
    for number in range(rounds + 1):
        for model, found in zip(models, times, strict=True):
            model.keep(0)
            while model.length < past:
                model.run(tokens[: min(PREFILL, past - model.length)], [0])
            for width in (*WIDTHS, PREFILL):
                for _ in range(1 if width == PREFILL else 4):
                    model.keep(past)
                    start = time.perf_counter()
                    model.run(tokens[:width], [0] if width == PREFILL else range(width))
                    if number:  # the first round is the warm-up
                        found[width].append(time.perf_counter() - start)
    click.echo(f"{machine_name()}, ONNX Runtime {onnxruntime.__version__}, {threads} threads, {past} cache rows")
    click.echo(f"10th percentile of {rounds} rounds in ms, and its ratio to a pass of one token")
    click.echo(f"{'':24}" + "".join(f"{width:>8}" for width in WIDTHS) + f"   prefill of {PREFILL}")
    for bundle, found in zip(bundles, times, strict=True):
        cost = {width: p10(values) * 1e3 for width, values in found.items()}
        prefill = f"   {PREFILL / cost[PREFILL] * 1e3:.0f} tokens/s"
        click.echo(f"{bundle.name[:23]:24}" + "".join(f"{cost[width]:8.2f}" for width in WIDTHS) + prefill)
        click.echo(f"{'':24}" + "".join(f"{cost[width] / cost[1]:8.2f}" for width in WIDTHS))


if __name__ == "__main__":
    main()
