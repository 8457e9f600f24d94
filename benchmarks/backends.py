"""What ONNX Runtime's C library through ctypes costs beside its Python package: ``python -m benchmarks.backends BUNDLE LIBRARY``.

Prints the 10th percentile of a pass in milliseconds. Both backends hold the same graph and take turns; they would starve each
other's threads, so one thread is the default.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from benchmarks.figures import p10
from edgespec.bundle import open_bundle
from edgespec.runtime.models.model import Model
from edgespec.runtime.ort import LIBRARY_VARIABLE, import_onnxruntime
from edgespec.runtime.providers.session import DEFAULT_PROVIDERS
from edgespec.runtime.tuning.machine import machine_name

WIDTHS = (1, 2, 5)


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path, exists=True))
@click.argument("library", type=click.Path(exists=True))
@click.option("--past", default=128, show_default=True, help="Valid cache rows before the pass.")
@click.option("--rounds", default=100, show_default=True)
@click.option("--threads", default=1, show_default=True)
def main(bundle: Path, library: str, past: int, rounds: int, threads: int) -> None:
    spec = open_bundle(bundle).target
    models = {}
    for name, variable in (("package", ""), ("C library", library)):
        os.environ[LIBRARY_VARIABLE] = variable
        capacity = min(spec.capacity, 2048)
        model = Model(bundle / spec.graph, spec, capacity=capacity, threads=threads, providers=DEFAULT_PROVIDERS, alone=False)
        models[f"{name} {import_onnxruntime().__version__}"] = model
        model.run(range(5, 5 + past), [0])
    times: dict[tuple[str, int], list[float]] = {(name, width): [] for name in models for width in WIDTHS}
    for number in range(rounds + 1):
        for width in WIDTHS:
            for name, model in models.items():
                model.keep(past)
                started = time.perf_counter()
                model.run(range(5, 5 + width), range(width))
                if number:  # the first round is the warm-up
                    times[name, width].append(time.perf_counter() - started)
    click.echo(f"{machine_name()}, {threads} threads, {past} cache rows; 10th percentile of {rounds} passes in ms")
    click.echo(f"{'tokens in a pass':24}" + "".join(f"{width:>10}" for width in WIDTHS))
    for name in models:
        click.echo(f"{name:24}" + "".join(f"{p10(times[name, width]) * 1e3:10.3f}" for width in WIDTHS))


if __name__ == "__main__":
    main()
