"""Engines side by side: ``python -m benchmarks.peers GGUF``. See the package's docstring."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

import edgespec
from benchmarks.figures import median, ratio
from benchmarks.peers import environments
from benchmarks.peers.engines import ENGINES, Setting
from benchmarks.peers.environments import Unavailable
from benchmarks.peers.process import Worker
from edgespec.bench.prompts import OWN, read_prompts
from edgespec.cache import cache_folder
from edgespec.runtime.machine import machine_name
from edgespec.runtime.session import default_threads

Arm = tuple[str, str]
"""An engine and one of its modes."""


@dataclasses.dataclass
class Measured:
    """All answers: by arm, then by round, then by question; ``lengths`` are the prompts' in tokens."""

    answers: dict[Arm, list[list[dict[str, Any]]]]
    lengths: list[int]
    new_tokens: int

    def decode(self, arm: Arm) -> list[float]:
        """Tokens per second after the first, of every answer."""
        return [(self.new_tokens - 1) / answer["decode_s"] for batch in self.answers[arm] for answer in batch]

    def prefill(self, arm: Arm) -> list[float]:
        """Prompt tokens per second up to the first token, of every answer."""
        return [length / answer["prefill_s"] for batch in self.answers[arm] for length, answer in zip(self.lengths, batch, strict=True)]

    def equal(self, arm: Arm) -> int:
        """Questions whose text is that of the same engine's plain decoding (of ours: exact plain decoding)."""
        name, mode = arm
        base = (name, "plain exact") if (name, "plain exact") in self.answers and mode != "plain" else (name, "plain")
        return sum(one["ids"] == other["ids"] for one, other in zip(self.answers[arm][0], self.answers[base][0], strict=True))


def measure(workers: dict[Arm, Worker], prompts: list[list[int]], new_tokens: int, rounds: int) -> Measured:
    """Ask every engine every question in every round; the engines take turns question by question."""
    answers: dict[Arm, list[list[dict[str, Any]]]] = {arm: [] for arm in workers}
    for number in range(rounds + 1):
        batch: dict[Arm, list[dict[str, Any]]] = {arm: [] for arm in workers}
        for ids in prompts if number else prompts[:2]:  # round 0 warms up
            for arm, worker in workers.items():
                batch[arm].append(worker.ask(arm[1], ids, new_tokens))
        if number:
            for arm in workers:
                answers[arm].append(batch[arm])
    return Measured(answers, [len(ids) for ids in prompts], new_tokens)


@click.command()
@click.argument("gguf", type=click.Path(path_type=Path, exists=True))
@click.option("--weights", type=click.Choice(["int4", "int8"]), default="int4", show_default=True)
@click.option("--block-size", default=32, show_default=True)
@click.option("--engine", "engines", multiple=True, type=click.Choice([*ENGINES]), help="Only this one; may be given several times.")
@click.option("--threads", default=default_threads(), show_default=True)
@click.option("--prompts", type=click.Path(path_type=Path, exists=True), default=OWN, help="A file in Spec-Bench's format.")
@click.option("--questions", type=int, help="So many of the prompts.")
@click.option("--new-tokens", default=96, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Where to write everything that was measured.")
def main(gguf: Path, prompts: Path, questions: int | None, engines: tuple[str, ...], json_file: Path | None, **settings: Any) -> None:
    """Run every engine on the same weights, prompts and token counts, in turns."""
    folder = cache_folder() / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    setting = Setting(gguf, folder, settings["weights"], settings["block_size"], settings["threads"])
    workers = start(setting, [name for name in ENGINES if not engines or name in engines])
    bundle = environments.edgespec_bundle(gguf, folder, setting.weights, setting.block)
    with edgespec.load(bundle) as engine:
        asked = [engine.encode(question.text) for question in read_prompts(prompts, questions)]
    measured = measure(workers, asked, settings["new_tokens"], settings["rounds"])
    lengths = measured.lengths
    click.echo(
        f"{machine_name()}, {setting.threads} threads, {setting.weights} block {setting.block}; "
        f"{', '.join(dict.fromkeys(worker.engine for worker in workers.values()))}"
    )
    click.echo(
        f"{len(asked)} prompts of {min(lengths)} to {max(lengths)} tokens, {settings['new_tokens']} new tokens, greedy, "
        f"{settings['rounds']} rounds"
    )
    reference = ("onnxruntime-genai", "plain")
    click.echo(table(measured, workers, reference if reference in workers else next(iter(workers))))
    if json_file:
        json_file.write_text(json.dumps({": ".join(arm): rows for arm, rows in measured.answers.items()}))
    for worker in set(workers.values()):
        worker.close()


def start(setting: Setting, names: Sequence[str]) -> dict[Arm, Worker]:
    """The worker of every mode of every engine that can be had; of the others the reason is told."""
    workers: dict[Arm, Worker] = {}
    for name in names:
        try:
            for command in ENGINES[name](setting):
                worker = Worker(command)
                workers |= {(name, mode): worker for mode in worker.modes}
        except (Unavailable, OSError) as error:
            click.echo(f"{name}: left out: {error}", err=True)
    if not workers:
        raise click.ClickException("no engine could be started")
    return workers


def table(measured: Measured, workers: dict[Arm, Worker], reference: Arm) -> str:
    """A row per arm: medians, and the median over answers of the ratio to the reference's answer to the same question."""
    head = f"{'':34}{'decode':>10}{'ratio':>8}{'prefill':>10}{'ratio':>8}{'equal to plain':>16}{'peak MB':>9}{'load s':>8}"
    lines = [head, f"{'':34}{'tokens/s':>10}{'':8}{'tokens/s':>10}"]
    for arm in measured.answers:
        decode, prefill = measured.decode(arm), measured.prefill(arm)
        worker = workers[arm]
        lines.append(
            f"{' '.join(arm):34}{median(decode):10.1f}{ratio(decode, measured.decode(reference)):8.2f}"
            f"{median(prefill):10.0f}{ratio(prefill, measured.prefill(reference)):8.2f}"
            f"{f'{measured.equal(arm)} of {len(measured.lengths)}':>16}{worker.peak_rss_bytes / 1e6:9.0f}{worker.load_s:8.2f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
