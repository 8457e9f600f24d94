"""The benchmark beside other engines, with engines that answer at once: turns, failures, interruptions, and the table."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.peers.environments import Unavailable
from benchmarks.peers.measured import Measured, measure
from benchmarks.peers.process import Worker
from benchmarks.peers.table import table

PEERS = Path(__file__).parents[1] / "benchmarks" / "peers"
ENGINE = """
import sys
sys.path.insert(0, {folder!r})
from worker import serve

def plain(ids, new_tokens):
    return [*range(new_tokens)], 0.5, 0.25

def drafts(ids, new_tokens):
    return [*range(new_tokens - 1), 99 if len(ids) > 3 else new_tokens - 1], 0.5, 0.125

def broken(ids, new_tokens):
    raise ValueError("no such draft\\nfrom overloads: ...")

def dies(ids, new_tokens):
    sys.exit("out of memory")

serve("engine 1.0", 0.75, {{"plain": plain, "drafts": drafts, "broken": broken, "dies": dies}})
"""
PROMPTS = [[1, 2], [1, 2, 3], [1, 2, 3, 4]]


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    script = tmp_path / "engine.py"
    script.write_text(ENGINE.format(folder=str(PEERS)))
    started = Worker([sys.executable, str(script)])
    yield started
    started.close()


def test_a_mode_that_fails_is_listed_and_the_others_go_on(worker: Worker) -> None:
    measured = Measured([len(ids) for ids in PROMPTS], new_tokens=5, rounds=2, kl={("engine", "default"): 0.125})
    arms = [("engine", mode) for mode in ("plain", "drafts", "broken")]
    measure(measured, dict.fromkeys(arms, worker), PROMPTS, lambda: None)
    assert measured.failed == {("engine", "broken"): "ValueError: no such draft"}
    assert measured.turns == 6
    assert measured.equal(("engine", "drafts")) == (2, 3)
    assert measured.as_dict()["complete"]
    text = table(measured, dict.fromkeys(arms, worker), dict.fromkeys(arms, 2_000_000), {arms[0]: 0.125}, arms[0])
    plain, drafts, failed = (line for line in text.splitlines() if "engine" in line and "mode" not in line)
    cells = [cell.strip() for cell in plain.split("|")[1:-1]]
    assert cells[:6] == ["engine, plain", "16.0", "1.00", "6", "1.00", "500"]
    assert cells[6] == "0.75"
    assert 0 < int(cells[7]) < 1000
    assert cells[8:] == ["2", "0.1250", ""]
    assert "| 32.0 | 2.00 |" in drafts
    assert drafts.endswith("| 2 of 3 |")
    assert failed == "Could not be run: engine, broken: ValueError: no such draft"


def test_an_interruption_keeps_the_questions_that_are_complete(worker: Worker, tmp_path: Path) -> None:
    measured = Measured([len(ids) for ids in PROMPTS], new_tokens=5, rounds=3)

    def on_turn() -> None:
        measured.save(tmp_path / "answers.json")
        if measured.turns == 4:
            raise KeyboardInterrupt

    measure(measured, {("engine", mode): worker for mode in ("plain", "drafts")}, PROMPTS, on_turn)
    assert measured.interrupted
    assert [*measured.answers["engine", "drafts"]] == [(1, 0), (1, 1), (1, 2), (2, 0)]
    kept = json.loads((tmp_path / "answers.json").read_text())
    assert not kept["complete"]
    assert len(kept["answers"]["engine: plain"]) == 4


def test_a_process_that_ends_says_why(worker: Worker) -> None:
    with pytest.raises(Unavailable, match="status 1: out of memory"):
        worker.ask("dies", [1], 2)
    with pytest.raises(Unavailable, match="out of memory"):
        worker.ask("plain", [1], 2)
    with pytest.raises(Unavailable, match="No module named 'no_such_engine'"):
        Worker([sys.executable, "-c", "import no_such_engine"])


def test_texts_are_compared_with_plain_decoding_of_the_same_exactness() -> None:
    measured = Measured([1], new_tokens=2, rounds=1)
    measured.answers = {
        ("ours", mode): {}
        for mode in ("plain", "plain exact", "auto", "n-gram fast", "plain exact, symmetric, blocks of 64", "auto, symmetric, blocks of 64")
    }
    measured.answers |= {("theirs", "draft"): {}, ("theirs", "draft, f32"): {}}
    bases = {arm: measured.base(arm)[1] for arm in measured.answers}
    assert bases["ours", "auto"] == "plain exact"
    assert bases["ours", "n-gram fast"] == bases["ours", "plain"] == "plain"
    assert bases["ours", "auto, symmetric, blocks of 64"] == "plain exact, symmetric, blocks of 64"
    assert bases["theirs", "draft"] == "plain"
    assert bases["theirs", "draft, f32"] == "plain, f32"
