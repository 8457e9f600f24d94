"""What processes really take: flat over many engines, and within random budgets. Slow: each measurement is a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.bundles import make_attention_bundle

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="private memory is read from /proc"),
]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_attention_bundle(tmp_path_factory.mktemp("measured") / "b", draft_noise=0.1, capacity=4096, max_width=16)


def benchmark(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "benchmarks.memory", *arguments], capture_output=True, text=True, check=False)


def test_a_hundred_engines_leave_memory_flat(bundle: Path) -> None:
    done = benchmark("engines", str(bundle))
    assert done.returncode == 0, done.stdout + done.stderr


def test_random_budgets_are_kept(bundle: Path) -> None:
    done = benchmark("budgets", str(bundle), "--count", "25", "--context", "1024")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_peak_is_predicted(bundle: Path) -> None:
    """Within 8 MB, for a process that ran the self-test and filled its context."""
    settings = {"budget": 10**12, "context": 2048, "length": 3, "packs": False}
    done = benchmark("worker", str(bundle), json.dumps(settings))
    found = json.loads(done.stdout)
    assert abs(found["plan"]["predicted_peak_bytes"] - found["peak_rss_bytes"]) < 8e6
