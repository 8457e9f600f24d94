"""Engines side by side: ``python -m benchmarks.peers GGUF``. See the package's docstring."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

import edgespec
from benchmarks.figures import median, ratio
from benchmarks.peers import environments
from edgespec.bench.prompts import OWN, read_prompts
from edgespec.cache import cache_folder
from edgespec.runtime.machine import machine_name
from edgespec.runtime.session import default_threads

HERE = Path(__file__).parent


class Worker:
    """An engine in a process of its own."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        hello = self._read()
        self.engine, self.load_s, self.modes = hello["engine"], hello["load_s"], hello["modes"]
        self.peak_rss_bytes = 0

    def ask(self, mode: str, ids: list[int], new_tokens: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"mode": mode, "ids": ids, "new_tokens": new_tokens}) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        self.peak_rss_bytes = answer["peak_rss_bytes"]
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args}: the worker ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


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


def measure(workers: dict[str, Worker], prompts: list[list[int]], new_tokens: int, rounds: int) -> Measured:
    """Ask every engine every question in every round; the engines take turns question by question."""
    arms = [(name, mode) for name, worker in workers.items() for mode in worker.modes]
    answers: dict[Arm, list[list[dict[str, Any]]]] = {arm: [] for arm in arms}
    for number in range(rounds + 1):
        batch: dict[Arm, list[dict[str, Any]]] = {arm: [] for arm in arms}
        for ids in prompts if number else prompts[:2]:  # round 0 warms up
            for name, mode in arms:
                batch[name, mode].append(workers[name].ask(mode, ids, new_tokens))
        if number:
            for arm in arms:
                answers[arm].append(batch[arm])
    return Measured(answers, [len(ids) for ids in prompts], new_tokens)


@click.command()
@click.argument("gguf", type=click.Path(path_type=Path, exists=True))
@click.option("--weights", type=click.Choice(["int4", "int8"]), default="int4", show_default=True)
@click.option("--block-size", default=32, show_default=True)
@click.option("--threads", default=default_threads(), show_default=True)
@click.option("--prompts", type=click.Path(path_type=Path, exists=True), default=OWN, help="A file in Spec-Bench's format.")
@click.option("--questions", type=int, help="So many of the prompts.")
@click.option("--new-tokens", default=96, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Where to write everything that was measured.")
def main(gguf: Path, prompts: Path, questions: int | None, json_file: Path | None, **settings: Any) -> None:
    """Run every engine on the same weights, prompts and token counts, in turns."""
    weights, block, threads = settings["weights"], settings["block_size"], str(settings["threads"])
    folder = cache_folder() / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    bundle = environments.edgespec_bundle(gguf, folder, weights, block)
    genai = environments.genai_model(environments.float_checkpoint(gguf, folder), folder, 4 if weights == "int4" else 8, block)
    with edgespec.load(bundle) as engine:
        asked = [engine.encode(question.text) for question in read_prompts(prompts, questions)]
    genai_python = str(environments.environment("onnxruntime-genai", folder))
    workers = {
        "edgespec": Worker([sys.executable, str(HERE / "run_edgespec.py"), str(bundle), threads]),
        "onnxruntime-genai": Worker([genai_python, str(HERE / "run_onnxruntime_genai.py"), str(genai), threads]),
    }
    measured = measure(workers, asked, settings["new_tokens"], settings["rounds"])
    lengths = measured.lengths
    click.echo(f"{machine_name()}, {threads} threads, {weights} block {block}; {', '.join(worker.engine for worker in workers.values())}")
    click.echo(
        f"{len(asked)} prompts of {min(lengths)} to {max(lengths)} tokens, {settings['new_tokens']} new tokens, greedy, "
        f"{settings['rounds']} rounds"
    )
    click.echo(table(measured, workers, ("onnxruntime-genai", "plain")))
    if json_file:
        json_file.write_text(json.dumps({": ".join(arm): rows for arm, rows in measured.answers.items()}))
    for worker in workers.values():
        worker.close()


def table(measured: Measured, workers: dict[str, Worker], reference: Arm) -> str:
    """A row per arm: medians, and the median over answers of the ratio to the reference's answer to the same question."""
    head = f"{'':34}{'decode':>10}{'ratio':>8}{'prefill':>10}{'ratio':>8}{'equal to plain':>16}{'peak MB':>9}{'load s':>8}"
    lines = [head, f"{'':34}{'tokens/s':>10}{'':8}{'tokens/s':>10}"]
    for arm in measured.answers:
        decode, prefill = measured.decode(arm), measured.prefill(arm)
        worker = workers[arm[0]]
        lines.append(
            f"{' '.join(arm):34}{median(decode):10.1f}{ratio(decode, measured.decode(reference)):8.2f}"
            f"{median(prefill):10.0f}{ratio(prefill, measured.prefill(reference)):8.2f}"
            f"{f'{measured.equal(arm)} of {len(measured.lengths)}':>16}{worker.peak_rss_bytes / 1e6:9.0f}{worker.load_s:8.2f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
