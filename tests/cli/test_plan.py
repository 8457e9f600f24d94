"""``edgespec plan``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.helpers.bundles import make_attention_bundle


def test_the_parts_and_the_peak(edgespec: Run, tmp_path: Path) -> None:
    bundle = make_attention_bundle(tmp_path / "b", draft_noise=0.1, capacity=1024)
    outcome = edgespec("plan", str(bundle))
    assert outcome.code == 0
    for name in ("tokenizer", "packed weights of target", "KV cache of draft", "private", "evictable", "peak", "1024 tokens"):
        assert name in outcome.out
    found = json.loads(edgespec("plan", str(bundle), "--context", "512", "--json").out)
    assert found["settings"] == {"context": 512, "chunk": 128, "width": 8, "draft_window": 512, "drafts": ["draft"], "kv": ["float32"]}
    windowed = json.loads(edgespec("plan", str(bundle), "--draft-window", "64", "--json").out)
    assert windowed["settings"]["draft_window"] == 64
    assert found["private_bytes"] == sum(part["private"] for part in found["parts"])
    assert found["ceiling_bytes"] >= found["predicted_peak_bytes"] >= found["private_bytes"]
    assert found["budget_bytes"] is None


def test_what_is_given_up(edgespec: Run, tmp_path: Path) -> None:
    bundle = make_attention_bundle(tmp_path / "b", draft_noise=0.1, capacity=4096)
    most = json.loads(edgespec("plan", str(bundle), "--json").out)["ceiling_bytes"]
    outcome = edgespec("plan", str(bundle), "--memory-budget", str(most - 2_500_000))
    assert outcome.code == 0
    assert "given up" in outcome.out
    assert "without draft" in outcome.out
    refused = edgespec("plan", str(bundle), "--memory-budget", "1MB")
    assert refused.code == 2
    assert "the smallest that works is" in refused.err
    assert edgespec("plan", str(bundle), "--context", "5000").code == 2
    assert edgespec("plan", str(tmp_path)).code == 2


def test_a_memory_trace_is_a_picture(edgespec: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, picture = make_attention_bundle(tmp_path / "b"), tmp_path / "trace.svg"
    outcome = edgespec("run", str(bundle), "hello", "--max-new-tokens", "8", "--memory-trace", str(picture), "--memory-budget", "2GB")
    assert outcome.code == 0, outcome.err
    drawn = picture.read_text(encoding="utf-8")
    assert drawn.startswith("<svg")
    for name in ("private", "pages of files", "predicted peak", "loaded", "answered", "MB resident"):
        assert name in drawn
    for path, message in ((tmp_path / "a.txt", "ends in .svg"), (tmp_path / "no" / "a.svg", "no folder")):
        refused = edgespec("run", str(bundle), "hello", "--memory-trace", str(path))
        assert refused.code == 2
        assert message in refused.err
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    refused = edgespec("run", str(bundle), "hello", "--memory-trace", str(tmp_path / "a.svg"))
    assert refused.code == 2
    assert "pip install 'edgespec[bench]'" in refused.err
