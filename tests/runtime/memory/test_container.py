"""Limits of control groups: as files of both versions tell them, as a budget, and enforced by the kernel."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from benchmarks.control_group import limited_memory
from edgespec.errors import CapacityError
from edgespec.runtime import load
from edgespec.runtime.memory import container
from edgespec.runtime.memory.ahead import plan_bundle
from edgespec.runtime.memory.measure import Usage, usage
from tests.helpers.bundles import make_attention_bundle
from tests.runtime.memory.test_measured import benchmark

MB = 10**6
HELD = 400 * MB  # bytes that this process is said to hold


def make_group(folder: Path, limit_file: str, limit: str, field: str, held: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / limit_file).write_text(f"{limit}\n")
    (folder / "memory.stat").write_text(f"cache 5\n{field} {held}\n")


@pytest.mark.parametrize(
    ("membership", "place", "limit_file", "field"),
    [
        ("0::/user/app\n", "", "memory.max", "anon"),
        ("0::/\n7:cpu:/user/app\n4:blkio,memory:/user/app\n", "memory", "memory.limit_in_bytes", "total_rss"),
    ],
    ids=["version 2", "version 1"],
)
def test_the_narrowest_group_counts(
    groups: Path, monkeypatch: pytest.MonkeyPatch, membership: str, place: str, limit_file: str, field: str
) -> None:
    monkeypatch.setattr(container, "usage", lambda: Usage(HELD, HELD, 0, HELD))
    (groups / "membership").write_text(membership)
    assert container.room() is None, "no files"
    make_group(groups / place / "user/app", limit_file, "max" if "::/user" in membership else str(2**63 - 4096), field, HELD)
    assert container.room() is None
    make_group(groups / place / "user", limit_file, str(900 * MB), field, HELD + 100 * MB)
    assert container.room() == 800 * MB, "another process of the group has 100 MB"
    make_group(groups / place / "user/app", limit_file, str(700 * MB), field, HELD)
    assert container.room() == 700 * MB
    make_group(groups / place, limit_file, str(500 * MB), field, HELD - MB)
    assert container.room() == 500 * MB, "as a container sees its own group"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_attention_bundle(tmp_path_factory.mktemp("container") / "b", draft_noise=0.1, capacity=4096, max_width=16)


def test_a_limit_is_a_budget_where_nobody_named_one(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"drafter": "draft", "draft_length": 3, "max_new_tokens": 12}
    with load(bundle, threads=1, pack_cache=False) as engine:
        assert engine.plan.budget is None
        wanted, ceiling = engine.generate([5, 6, 7], **options).token_ids, engine.plan.ceiling
    monkeypatch.setattr(container, "room", lambda: usage().resident + 4 * ceiling)
    assert plan_bundle(bundle).budget is None, "there is enough"
    monkeypatch.setattr(container, "room", lambda: 10 * MB)
    with pytest.raises(CapacityError, match="smallest that works"):
        load(bundle, threads=1)
    least = plan_bundle(bundle, memory_budget="10GB", context=512).ceiling
    monkeypatch.setattr(container, "room", lambda: least)
    with caplog.at_level(logging.WARNING), load(bundle, threads=1, pack_cache=False) as engine:
        assert engine.plan.budget == least
        result = engine.generate([5, 6, 7], **options)
    assert result.token_ids == wanted
    assert result.stats.degraded
    assert "this container leaves" in caplog.text
    assert plan_bundle(bundle, memory_budget="10GB").budget == 10**10, "what was named counts"


@pytest.mark.slow
def test_the_kernel_kills_nothing(bundle: Path) -> None:
    """Random limits, of which no process is told: it finds them, stays below, writes the same text, or refuses in a line."""
    try:
        with limited_memory(10**9):
            pass
    except OSError as error:
        pytest.skip(f"needs a control group of its own: {error}")
    done = benchmark("budgets", str(bundle), "--count", "20", "--context", "1024", "--enforced")
    assert done.returncode == 0, done.stdout + done.stderr
