"""Did a change make decoding slower? Two revisions of this repository in one run, in turns.

    python -m benchmarks.guard OLD [NEW] --bundle BUNDLE [--gguf GGUF] [--rounds 5]

Each revision is checked out aside and answers in a process of its own. With ``--gguf`` each also exports the bundle that it runs, so
that changes of the exporter count; with ``--bundle`` both run the same one. The ratio of decode speeds is taken answer by
answer and its median comes with a 95 % interval (bootstrap over the answers). Exit code 1 if NEW is slower for certain.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np

import edgespec
from benchmarks.peers.process import Worker
from edgespec.bench.prompts import OWN, read_prompts
from edgespec.runtime.cores import default_threads
from edgespec.runtime.tuning.machine import machine_name

ROOT = Path(__file__).parents[1]
RESAMPLES = 2000


@contextlib.contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """A folder with the repository at ``revision``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkout"
        git = ["git", "-C", str(ROOT), "worktree"]
        done = subprocess.run([*git, "add", "--quiet", "--detach", str(path), revision], capture_output=True, text=True, check=False)
        if done.returncode:
            raise click.ClickException(f"{revision}: {done.stderr.strip()}")
        try:
            yield path
        finally:
            subprocess.run([*git, "remove", "--force", str(path)], check=False)


def environment(path: Path) -> dict[str, str]:
    """Environment variables under which ``import edgespec`` finds the checkout."""
    return {**os.environ, "PYTHONPATH": str(path)}


def export(path: Path, gguf: Path, weights: str) -> Path:
    bundle = path.parent / "bundle"
    command = [sys.executable, "-m", "edgespec", "export", str(gguf), "--weights", weights, "--quiet", "-o", str(bundle)]
    subprocess.run(command, check=True, cwd=path, env=environment(path))
    return bundle


def interval(ratios: np.ndarray) -> tuple[float, float]:
    """A 95 % interval for the median of ``ratios`` [n]."""
    picks = np.random.default_rng(0).choice(ratios, (RESAMPLES, len(ratios)))
    low, high = np.percentile(np.median(picks, axis=1), [2.5, 97.5])
    return float(low), float(high)


@click.command()
@click.argument("old")
@click.argument("new", default="HEAD")
@click.option("--bundle", type=click.Path(path_type=Path, exists=True), help="Both revisions run this bundle.")
@click.option("--gguf", type=click.Path(path_type=Path, exists=True), help="Each revision exports this checkpoint and runs its own bundle.")
@click.option("--weights", default="int8", show_default=True, help="For --gguf.")
@click.option("--threads", default=default_threads(), show_default=True)
@click.option("--new-tokens", default=64, show_default=True)
@click.option("--rounds", default=5, show_default=True)
def main(old: str, new: str, bundle: Path | None, gguf: Path | None, weights: str, threads: int, new_tokens: int, rounds: int) -> None:
    """Ratio of decode speed, NEW over OLD, for every mode."""
    if (bundle is None) == (gguf is None):
        raise click.UsageError("give either --bundle or --gguf")
    with contextlib.ExitStack() as stack:
        folders = {revision: stack.enter_context(checkout(revision)) for revision in (old, new)}
        bundles = {name: bundle or export(folder, gguf, weights) for name, folder in folders.items()}  # type: ignore[arg-type]
        with edgespec.load(bundles[new]) as engine:
            prompts = [engine.encode(question.text) for question in read_prompts(OWN, None)]
        workers = {}
        for name, folder in folders.items():
            command = [sys.executable, str(folder / "benchmarks/peers/run_edgespec.py"), str(bundles[name]), str(threads)]
            workers[name] = Worker(command, environment(folder))
        modes = [mode for mode in workers[new].modes if mode in workers[old].modes]
        times: dict[tuple[str, str], list[float]] = {(name, mode): [] for name in workers for mode in modes}
        for number in range(rounds + 1):
            for index, ids in enumerate(prompts if number else prompts[:1]):  # round 0 warms up
                for mode in modes:
                    for name in (old, new) if index % 2 else (new, old):
                        answer = workers[name].ask(mode, ids, new_tokens)
                        if number:
                            times[name, mode].append(answer["decode_s"])
        for worker in workers.values():
            worker.close()
    click.echo(f"{machine_name()}, {threads} threads, {len(prompts)} prompts, {new_tokens} new tokens, {rounds} rounds: {new} over {old}")
    slower = False
    for mode in modes:
        ratios = np.array(times[old, mode]) / np.array(times[new, mode])
        low, high = interval(ratios)
        slower |= high < 1
        click.echo(f"{mode:12}{np.median(ratios):6.3f}  [{low:.3f}, {high:.3f}]{'  slower' if high < 1 else ''}")
    sys.exit(int(slower))


if __name__ == "__main__":
    main()
