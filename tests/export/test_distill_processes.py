"""Distillation in processes of its own: two that work together, and one that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgespec.export.distill.workplace import Workplace

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = ["--tokens", "2000", "--epochs", "3", "--shard-texts", "12", "--answer-tokens", "48", "--batch-rows", "256", "--weights", "fp32"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def start(words: list[str], launcher: tuple[str, ...] = ("-m", "edgespec")) -> subprocess.Popen[str]:
    command = [sys.executable, *launcher, "distill", *words]
    return subprocess.Popen(command, env=ENVIRONMENT, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> dict[str, object]:
    out, err = process.communicate(timeout=500)
    assert process.returncode == 0, err[-3000:]
    found: dict[str, object] = json.loads(out[out.index("{") :])
    return found


def tokens_of(output: Path) -> list[list[int]]:
    return [shard.tokens.tolist() for shard in Workplace(output).closed_corpus()]


def test_two_processes_make_the_same_corpus_and_one_draft(talking: Path, tmp_path: Path) -> None:
    alone, together = tmp_path / "alone", tmp_path / "together"
    single = finish(start([str(talking), "-o", str(alone), *OPTIONS, "--json", "--quiet"]))
    # accelerate's name for several processes; without GPUs they are of the CPU and talk through gloo.
    options = ("--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no")
    launcher = ("-m", "accelerate.commands.launch", *options, "-m", "edgespec")
    double = finish(start([str(talking), "-o", str(together), *OPTIONS, "--json", "--quiet"], launcher))
    assert tokens_of(alone) == tokens_of(together)
    for report in (single, double):
        assert report["held_out"]["all"]["tokens_per_pass"] > 1.03  # type: ignore[index]
    assert "| processes | 2 |" in (together / "README.md").read_text(encoding="utf-8")


def test_killed_again_and_again_it_ends_with_the_same_draft(talking: Path, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(start([str(talking), "-o", str(whole), *OPTIONS, "--json"]))
    words = [str(talking), "-o", str(killed), *OPTIONS, "--json"]
    work = Workplace(killed)
    for sign in (lambda: len(work.shards()) >= 2, lambda: work.is_closed, work.training.is_file):
        process = start([*words, "--resume"])
        while not sign() and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
    finish(start([*words, "--resume"]))
    assert tokens_of(killed) == tokens_of(whole)
    assert (killed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_evaluation_of_a_finished_draft(talking: Path, tmp_path: Path) -> None:
    options = [str(talking), "-o", str(tmp_path / "draft"), *OPTIONS, "--quiet"]
    finish(start([*options, "--json"]))
    found = finish(start([*options, "--evaluate", "--json"]))
    assert set(found["speedups"]) == {"plain, fast", "plain", "ngram", "eagle:3", "ngram,eagle", "auto"}  # type: ignore[call-overload]
    assert [path.name for path in tmp_path.iterdir() if "evaluate" in path.name] == []
