"""Bundles by their name on the Hub, against a Hub on the loopback interface and huggingface_hub as it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgespec.bundle import check_hashes, open_bundle
from edgespec.hub import is_hub_id, model_card
from edgespec.manifest import MANIFEST_NAME, read_manifest
from tests.helpers.bundles import make_lookup_bundle
from tests.helpers.hub import Hub, serve_hub

pytest.importorskip("huggingface_hub")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with serve_hub(tmp_path / "hub") as running:
        (tmp_path / "hub" / "me").mkdir(parents=True)
        make_lookup_bundle(tmp_path / "hub" / "me" / "alphabet", chat=False)
        yield running


def edgespec(*arguments: str, hub: Hub | None, cache: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own: huggingface_hub reads its settings when it is imported."""
    settings = {
        "HF_HOME": str(cache / "hf"),
        "HF_ENDPOINT": hub.url if hub else "http://127.0.0.1:9",
        **environment,
    }
    command = [sys.executable, "-m", "edgespec", *arguments]
    return subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=False, timeout=120)


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return next(line for line in done.stderr.splitlines() if line.startswith("edgespec: error: "))


def test_a_bundle_runs_by_its_name_and_is_fetched_once(hub: Hub, cache: Path) -> None:
    first = edgespec("run", "me/alphabet", "a", "--max-new-tokens", "4", "--json", hub=hub, cache=cache)
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout)["text"] == "bcde"
    fetched = [request for request in hub.requests if request.startswith("GET") and request.endswith(".onnx")]
    assert len(fetched) == 1
    again = edgespec("run", "me/alphabet", "a", "--max-new-tokens", "4", "--json", hub=hub, cache=cache)
    assert again.returncode == 0, again.stderr
    assert [request for request in hub.requests if request.startswith("GET") and request.endswith(".onnx")] == fetched


def test_only_what_the_manifest_lists_is_fetched(hub: Hub, cache: Path) -> None:
    (hub.root / "me" / "alphabet" / "extra.bin").write_bytes(b"x" * 1000)
    assert edgespec("inspect", "me/alphabet", hub=hub, cache=cache).returncode == 0
    assert not any("extra.bin" in request for request in hub.requests)


def test_a_fetched_bundle_serves_without_the_network(hub: Hub, cache: Path) -> None:
    assert edgespec("inspect", "me/alphabet", hub=hub, cache=cache).returncode == 0
    assert edgespec("inspect", "me/alphabet", hub=None, cache=cache).returncode == 0
    assert edgespec("inspect", "me/alphabet", hub=hub, cache=cache, HF_HUB_OFFLINE="1").returncode == 0
    assert "Hub cannot be reached" in error_of(edgespec("inspect", "me/other", hub=None, cache=cache))


def test_a_bundle_with_wrong_bytes_is_refused(hub: Hub, cache: Path) -> None:
    graph = hub.root / "me" / "alphabet" / "target.onnx"
    data = bytearray(graph.read_bytes())
    data[-1] ^= 1
    graph.write_bytes(bytes(data))
    for _ in range(2):
        assert "sha256" in error_of(edgespec("inspect", "me/alphabet", hub=hub, cache=cache))


def test_what_cannot_be_had_is_said(hub: Hub, cache: Path) -> None:
    assert "no such model on the Hub" in error_of(edgespec("inspect", "me/nothing", hub=hub, cache=cache))
    assert "me/alphabet: has no revision v9" in error_of(edgespec("inspect", "me/alphabet@v9", hub=hub, cache=cache))
    hub.gated.add("me/alphabet")
    assert "hf auth login" in error_of(edgespec("inspect", "me/alphabet", hub=hub, cache=cache))
    (hub.root / "me" / "notes").mkdir()
    (hub.root / "me" / "notes" / "README.md").write_text("hello")
    assert "not a bundle" in error_of(edgespec("inspect", "me/notes", hub=hub, cache=cache))


def test_a_bundle_is_published_and_comes_back_the_same(hub: Hub, cache: Path, tmp_path: Path) -> None:
    bundle = make_lookup_bundle(tmp_path / "mine")
    (bundle / "private.txt").write_text("not of the bundle")
    done = edgespec("push", str(bundle), "me/published", hub=hub, cache=cache, HF_TOKEN="hf_token")
    assert done.returncode == 0, done.stderr
    assert "/me/published/commit/" in done.stdout
    published = hub.root / "me" / "published"
    check_hashes(published, open_bundle(published))
    assert {path.name for path in published.iterdir()} == {entry.name for entry in read_manifest(bundle).files} | {
        MANIFEST_NAME,
        "README.md",
    }
    assert "edgespec run me/published" in (published / "README.md").read_text()


def test_a_refused_publication_is_one_line(hub: Hub, cache: Path, tmp_path: Path) -> None:
    bundle = make_lookup_bundle(tmp_path / "mine")
    hub.read_only.add("me/locked")
    assert "not allowed" in error_of(edgespec("push", str(bundle), "me/locked", hub=hub, cache=cache, HF_TOKEN="hf_token"))
    assert "cannot be reached" in error_of(edgespec("push", str(bundle), "me/new", hub=None, cache=cache, HF_TOKEN="hf_token"))
    assert "owner/name" in error_of(edgespec("push", str(bundle), "new", hub=hub, cache=cache))


def test_names_and_paths_are_told_apart() -> None:
    assert is_hub_id("owner/name-1.5B")
    assert not any(is_hub_id(name) for name in ("./name", "~/name", "/a/b", "a/b/c", "", "..", "a b"))


def test_the_card_states_licence_source_and_fidelity(tmp_path: Path) -> None:
    card = model_card("me/it", read_manifest(make_lookup_bundle(tmp_path / "mine")))
    assert card.startswith("---\n")
    assert "library_name: edgespec" in card
    assert "**target**" in card
