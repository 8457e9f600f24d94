"""Engines side by side: ``python -m benchmarks.peers GGUF``. See the package's docstring."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

import edgespec
from benchmarks.figures import median
from benchmarks.peers import models
from benchmarks.peers.engines import ENGINES, Part, Setting
from benchmarks.peers.environments import Unavailable
from benchmarks.peers.measured import Arm, Measured, measure
from benchmarks.peers.process import Worker
from benchmarks.peers.table import table
from benchmarks.scores import Held
from edgespec.bench.prompts import OWN, read_prompts
from edgespec.cache import cache_folder
from edgespec.cli.output import progress
from edgespec.runtime.cores import default_threads
from edgespec.runtime.tuning.machine import machine_name

LOADS = 3
REFERENCE = ("onnxruntime-genai", "plain")


@click.command()
@click.argument("gguf", type=click.Path(path_type=Path, exists=True))
@click.option("--bits", type=click.Choice(["4", "8"]), default="4", show_default=True, help="llama.cpp: the GGUF as it is, or Q8_0.")
@click.option("--block-size", default=32, show_default=True)
@click.option("--draft-layers", type=click.IntRange(0), default=4, show_default=True, help="Layers of the draft; 0 for no draft pairs.")
@click.option("--engine", "engines", multiple=True, type=click.Choice([*ENGINES]), help="Only this one; may be given several times.")
@click.option("--kl/--no-kl", default=True, show_default=True, help="Measure each engine's divergence; builds llama.cpp from source once.")
@click.option("--prepare", is_flag=True, help="Install and convert what is missing, and measure nothing.")
@click.option("--threads", default=default_threads(), show_default=True)
@click.option("--prompts", type=click.Path(path_type=Path, exists=True), default=OWN, help="A file in Spec-Bench's format.")
@click.option("--questions", type=int, help="So many of the prompts.")
@click.option("--new-tokens", default=96, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Where to keep all answers; written after every question.")
def main(gguf: Path, prompts: Path, questions: int | None, engines: tuple[str, ...], json_file: Path | None, **options: Any) -> None:
    """Run every engine on the same weights, prompts and token counts, in turns. Ctrl-C ends it; what is complete is shown."""
    folder = cache_folder() / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    setting = Setting(gguf, folder, int(options["bits"]), options["block_size"], options["threads"], options["draft_layers"])
    failed: dict[Arm, str] = {}
    parts = make_parts(setting, [name for name in ENGINES if not engines or name in engines], failed)
    kl = divergences(gguf, parts, failed) if options["kl"] else {}
    if options["prepare"]:
        click.echo("\n".join(f"could not be had: {', '.join(arm)}: {error}" for arm, error in failed.items()) or "all is there")
        return
    bundle = models.edgespec_bundle(gguf, folder, f"int{setting.bits}", setting.block)
    with edgespec.load(bundle) as engine:
        asked = [engine.encode(question.text) for question in read_prompts(prompts, questions)]
    measured = Measured([len(ids) for ids in asked], options["new_tokens"], options["rounds"], failed=failed, kl=kl)
    workers, part_of = start(parts, failed)
    # What ends a run that takes too long is like Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with progress("asking", measured.rounds * len(asked)) as advance:

            def on_turn() -> None:
                advance(1)
                if json_file:
                    measured.save(json_file)

            measure(measured, workers, asked, on_turn)
        if json_file:
            measured.save(json_file)
        report(measured, setting, workers, part_of)
    finally:
        for worker in set(workers.values()):
            worker.close()


def make_parts(setting: Setting, names: Sequence[str], failed: dict[Arm, str]) -> dict[Arm, Part]:
    """The processes of engines by engine and name, with all that they need; why another cannot be had is put into ``failed``."""
    parts = {}
    for name in names:
        for part, make in ENGINES[name].items():
            if "draft" in part and not setting.draft_layers:
                continue
            try:
                parts[name, part] = make(setting)
            except (Unavailable, OSError) as error:
                failed[name, part] = str(error)
    return parts


def divergences(gguf: Path, parts: Mapping[Arm, Part], failed: dict[Arm, str]) -> dict[Arm, float]:
    """KL to the float model by engine and arithmetic; 0 where the weights are the float ones."""
    held, found = Held(gguf), {}
    for (name, _), part in parts.items():
        key = name, part.arithmetic
        if key in found or key in failed:
            continue
        if part.score is None:
            found[key] = 0.0
            continue
        try:
            found[key] = held.compare(part.score)[0].kl
        except Unavailable as error:
            failed[name, f"KL, {part.arithmetic} arithmetic"] = str(error)
    return found


def start(parts: Mapping[Arm, Part], failed: dict[Arm, str]) -> tuple[dict[Arm, Worker], dict[Arm, Part]]:
    """The worker and the part of every mode. Each process is started ``LOADS`` times, in turns, and its ``load_s`` is the median."""
    # Packages are installed as compiled files, so ours may be kept as such as well.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    workers: dict[Arm, Worker] = {}
    part_of: dict[Arm, Part] = {}
    loads: dict[Arm, list[float]] = {arm: [] for arm in parts}
    for number in range(LOADS):
        for (name, label), part in parts.items():
            if (name, label) in failed:
                continue
            try:
                worker = Worker(part.command, environment)
            except (Unavailable, OSError) as error:
                failed[name, label] = str(error)
                continue
            loads[name, label].append(worker.load_s)
            if number < LOADS - 1:
                worker.close()
                continue
            worker.load_s = median(loads[name, label])
            for mode in worker.modes:
                workers[name, mode], part_of[name, mode] = worker, part
    if not workers:
        raise click.ClickException(
            "no engine could be started: " + "; ".join(f"{', '.join(arm)}: {error}" for arm, error in failed.items())
        )
    return workers, part_of


def report(measured: Measured, setting: Setting, workers: Mapping[Arm, Worker], part_of: Mapping[Arm, Part]) -> None:
    """Print what was measured, and the table."""
    if not measured.answers:
        raise click.ClickException("interrupted before a question was complete")
    versions = ", ".join(dict.fromkeys(workers[arm].engine for arm in measured.answers))
    draft = f", draft of {setting.draft_layers} layers" if setting.draft_layers else ""
    click.echo(f"{machine_name()}, {setting.threads} threads, {setting.bits} bits in blocks of {setting.block}{draft}; {versions}")
    lengths = measured.lengths
    asked = f"{len(lengths)} prompts of {min(lengths)} to {max(lengths)} tokens"
    click.echo(f"{asked}, {measured.new_tokens} new tokens, greedy, {measured.rounds} rounds")
    if measured.interrupted:
        click.echo(f"INTERRUPTED: {measured.turns} of {measured.rounds * len(lengths)} questions were answered")
    reference = REFERENCE if REFERENCE in measured.answers else next(iter(measured.answers))
    click.echo(f"ratios are to {', '.join(reference)}\n")
    disk = {arm: models.bytes_of(*part.loads) for arm, part in part_of.items()}
    kl = {arm: measured.kl[arm[0], part.arithmetic] for arm, part in part_of.items() if (arm[0], part.arithmetic) in measured.kl}
    click.echo(table(measured, workers, disk, kl, reference))


if __name__ == "__main__":
    main()
