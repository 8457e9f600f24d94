"""What an EAGLE head's first step costs, in a session of its own behind the target's pass and inside that pass:
``python -m benchmarks.first_step BUNDLE``.

A verification pass of the target, and where the head has a session of its own a pass of it over the rows that were kept. All ways take
their turn in every round. Prints medians in milliseconds, and what each way takes more than the target alone, as a median over rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from benchmarks.figures import median
from edgespec.bundle import open_bundle
from edgespec.errors import UsageError
from edgespec.runtime.cores import default_threads
from edgespec.runtime.models.features import columns
from edgespec.runtime.models.fused import FusedModel, head_inside
from edgespec.runtime.models.model import Model
from edgespec.runtime.providers.session import DEFAULT_PROVIDERS
from edgespec.runtime.tuning.machine import machine_name

KEPT = 2  # rows that a round keeps, which the head has to take


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path, exists=True))
@click.option("--width", default=4, show_default=True, help="Tokens of the target's pass.")
@click.option("--past", default=128, show_default=True, help="Valid cache rows before the pass.")
@click.option("--rounds", default=60, show_default=True)
@click.option("--threads", default=default_threads(), show_default=True)
def main(bundle: Path, width: int, past: int, rounds: int, threads: int) -> None:
    import onnxruntime

    manifest = open_bundle(bundle)
    inside = head_inside(manifest)
    if inside is None:
        raise UsageError(f"{bundle}: no head is in its target's graph; export it with --eagle")
    target, spec = manifest.target, manifest.models[inside]
    assert spec.fused is not None
    how: dict[str, Any] = {"capacity": past + 2 * width, "threads": threads, "providers": DEFAULT_PROVIDERS, "alone": False}
    alone, own = (Model(bundle / each.graph, each, **how) for each in (target, spec))
    fused = FusedModel(bundle / spec.fused, target, spec, **how)
    reads = columns(target, spec.reads or ())
    tokens = list(range(5, 5 + past + width))

    def passes(model: Model) -> None:
        model.keep(past)
        model.run(tokens[past:], range(width))

    def with_own_session() -> None:
        passes(alone)
        own.keep(past)
        own.run(tokens[past : past + KEPT], [KEPT - 1], features=alone.features[past : past + KEPT, reads])

    ways: dict[str, Callable[[], None]] = {
        "the target alone": lambda: passes(alone),
        "head in a session of its own": with_own_session,
        "head inside, left out": lambda: passes(fused),
        "head inside, in the pass": lambda: passes(fused),
    }
    for start in range(0, past, alone.chunk):
        part = tokens[start : min(start + alone.chunk, past)]
        for model in (alone, fused):
            model.run(part, [0])
        own.run(part, [0], features=alone.features[start:, reads])
    steps = fused.attach(own)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            own.keep(past)
            steps.wanted = name.endswith("in the pass")
            started = time.perf_counter()
            way()
            if number:  # the first round is the warm-up
                times[name].append((time.perf_counter() - started) * 1e3)
    click.echo(f"{machine_name()}, ONNX Runtime {onnxruntime.__version__}, {threads} threads, {past} cache rows, a pass of {width} tokens")
    click.echo(f"median of {rounds} rounds in ms, and of what it is over the target alone")
    reference = times["the target alone"]
    for name, found in times.items():
        more = median([a - b for a, b in zip(found, reference, strict=True)])
        click.echo(f"{name:30}{median(found):8.2f}{more:+8.2f}")


if __name__ == "__main__":
    main()
