"""Saved packed weights: found again, equal bits, private memory that stays small; tampered with, unwritable, made twice at once."""

from __future__ import annotations

import concurrent.futures
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from edgespec.bundle import open_bundle
from edgespec.errors import CapacityError
from edgespec.manifest import KvLayer
from edgespec.runtime import load
from edgespec.runtime.memory import pack_cache
from edgespec.runtime.memory.measure import usage
from edgespec.runtime.memory.pack_cache import open_packs
from edgespec.runtime.memory.weights import read_weights
from tests.helpers.bundles import VOCAB, contract, write_bundle

pytestmark = pytest.mark.skipif(not pack_cache._supported(), reason="packs are found again where the allocator is glibc's")

WIDTH, LAYERS, BLOCK = 1024, 12, 32


def quantised_graph(path: Path) -> onnx.ModelProto:
    """A row of logits from an embedding that went through square matrices of 4 bits; the KV cache is passed through."""
    rng = np.random.default_rng(0)
    tensors = {
        "table": rng.normal(size=(VOCAB, WIDTH)).astype(np.float32),
        "head": rng.normal(size=(WIDTH, VOCAB)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Gather", ["input_ids", "logit_rows"], ["chosen"], axis=1),
        helper.make_node("Gather", ["table", "chosen"], ["x0"]),
    ]
    for i in range(LAYERS):
        tensors[f"data{i}"] = rng.integers(0, 255, (WIDTH, WIDTH // BLOCK, BLOCK // 2), dtype=np.uint8)
        tensors[f"scales{i}"] = (rng.normal(size=(WIDTH, WIDTH // BLOCK)) / 300).astype(np.float32)
        tensors[f"zeros{i}"] = rng.integers(0, 255, (WIDTH, WIDTH // BLOCK // 2), dtype=np.uint8)
        inputs = [f"x{i}", f"data{i}", f"scales{i}", f"zeros{i}"]
        attributes = {"K": WIDTH, "N": WIDTH, "bits": 4, "block_size": BLOCK, "accuracy_level": 4}
        nodes.append(helper.make_node("MatMulNBits", inputs, [f"x{i + 1}"], domain="com.microsoft", **attributes))
    nodes.append(helper.make_node("MatMul", [f"x{LAYERS}", "head"], ["logits"]))
    for part in ("key", "value"):
        nodes.append(helper.make_node("Identity", [f"past_key_values.0.{part}"], [f"present.0.{part}"]))
    inputs, outputs = contract([KvLayer(1, 1, 1)])
    graph = helper.make_graph(nodes, "tests", inputs, outputs, [numpy_helper.from_array(array, name) for name, array in tensors.items()])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    onnx.external_data_helper.convert_model_to_external_data(model, location="weights.bin", size_threshold=1024)
    onnx.save(model, str(path / "target.onnx"))
    return onnx.load(str(path / "target.onnx"), load_external_data=False)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packs") / "b"
    path.mkdir()
    return write_bundle(path, {"target": quantised_graph(path)}, {"target": (KvLayer(1, 1, 1),)}, chat=False, weights=("weights.bin",))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack_cache, "LEAST_BYTES", 2**20)


def packs(bundle: Path) -> dict[str, Path]:
    return open_packs(bundle, open_bundle(bundle), {"target": read_weights(bundle / "target.onnx")})


def text(bundle: Path, *, pack_cache: bool = True) -> tuple[int, ...]:
    with load(bundle, threads=1, pack_cache=pack_cache) as engine:
        return engine.generate([1, 2, 3], max_new_tokens=20, drafter="none").token_ids


def test_packs_are_pages_of_a_file_and_texts_are_equal(bundle: Path, cache: Path) -> None:
    packed = read_weights(bundle / "target.onnx").packed
    wanted = text(bundle, pack_cache=False)
    assert not (cache / "packs").exists()
    graph = packs(bundle)["target"]
    assert graph.is_relative_to(cache)
    before = usage()
    with load(bundle, threads=1) as engine:
        assert usage().private - before.private < packed / 3
        assert usage().evictable - before.evictable > packed / 2
        assert engine.generate([1, 2, 3], max_new_tokens=20, drafter="none").token_ids == wanted
    made = graph.stat().st_mtime_ns
    assert text(bundle) == wanted
    assert graph.stat().st_mtime_ns == made, "they are made once"


@pytest.mark.parametrize("name", ["packs.bin", "target.onnx", "packs.json"])
def test_what_was_tampered_with_is_made_again(bundle: Path, name: str) -> None:
    wanted = text(bundle)
    path = packs(bundle)["target"].parent / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    assert text(bundle) == wanted
    assert path.read_bytes() != data


def test_a_link_is_not_followed(bundle: Path, tmp_path: Path) -> None:
    path = packs(bundle)["target"].parent / "packs.bin"
    shutil.move(path, tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert not packs(bundle)["target"].with_name("packs.bin").is_symlink()


def test_a_graph_that_onnxruntime_refuses_gives_way_to_the_bundles(bundle: Path) -> None:
    wanted = text(bundle)
    folder = packs(bundle)["target"].parent
    (folder / "target.onnx").write_bytes(b"\x08\x0a")
    listed = json.loads((folder / "packs.json").read_text())
    listed["files"]["target.onnx"] = pack_cache._describe(folder / "target.onnx")
    (folder / "packs.json").write_text(json.dumps(listed))
    assert text(bundle) == wanted
    assert not folder.exists()


def test_a_cache_that_cannot_be_written_is_done_without(bundle: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = text(bundle, pack_cache=False)
    shutil.rmtree(cache)
    cache.write_text("a file where the folder should be")
    assert packs(bundle) == {}
    assert text(bundle) == wanted
    cache.unlink()
    monkeypatch.setattr(pack_cache, "SPARE_DISK", 2**60)
    assert packs(bundle) == {}
    assert list((cache / "packs").iterdir()) == []


def test_a_failed_making_leaves_nothing(bundle: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert packs(bundle) == {}
    assert list((cache / "packs").iterdir()) == []


def test_old_bundles_are_forgotten(bundle: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = cache / "packs" / "old"
    old.mkdir(parents=True)
    (old / "packs.bin").write_bytes(bytes(2**20))
    weights = {"target": read_weights(bundle / "target.onnx")}
    monkeypatch.setattr(pack_cache, "MOST_BYTES", pack_cache._expected(weights) + 2**21)
    assert packs(bundle)
    assert old.exists()
    shutil.rmtree(packs(bundle)["target"].parent)
    monkeypatch.setattr(pack_cache, "MOST_BYTES", pack_cache._expected(weights) + 2**19)
    assert packs(bundle)
    assert not old.exists()


def test_a_bundle_that_is_too_large_takes_no_others_place(bundle: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = cache / "packs" / "others"
    others.mkdir(parents=True)
    (others / "packs.bin").write_bytes(bytes(2**20))
    monkeypatch.setattr(pack_cache, "MOST_BYTES", pack_cache._expected({"target": read_weights(bundle / "target.onnx")}) - 1)
    assert packs(bundle) == {}
    assert [path.name for path in (cache / "packs").iterdir()] == ["others"]


def test_two_that_make_them_at_once_both_have_them(bundle: Path, cache: Path) -> None:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: packs(bundle), range(2)))
    assert found[0] == found[1] != {}
    assert [path.name for path in (cache / "packs").iterdir()] == [found[0]["target"].parent.name]
    assert packs(bundle) == found[0]


def test_packs_that_are_not_found_again_are_not_kept(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where ONNX Runtime packs to other bytes each time, so that it never takes a saved pack."""
    real = subprocess.run

    def differs(*arguments: Any, **options: Any) -> Any:
        done = real(*arguments, **options)
        done.stdout = json.dumps({"found_again": False})
        return done

    monkeypatch.setattr(subprocess, "run", differs)
    assert packs(bundle) == {}
    monkeypatch.setattr(subprocess, "run", None)
    folder = next(iter((pack_cache._root()).iterdir()))
    assert [path.name for path in folder.iterdir()] == ["packs.json"]
    assert packs(bundle) == {}, "and this is remembered"


def test_a_budget_that_is_too_small_is_refused_before_anything_is_made(bundle: Path, cache: Path) -> None:
    with pytest.raises(CapacityError, match="smallest that works"):
        load(bundle, memory_budget="1MB")
    assert not (cache / "packs").exists()
