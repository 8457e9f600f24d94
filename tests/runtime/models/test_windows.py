"""Layers with a window hold its rows and some more, and a rollback is as exact as with all of them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec.bundle import open_bundle
from edgespec.manifest import KvLayer, Quantisation
from edgespec.runtime import Engine, load
from edgespec.runtime.memory.ahead import plan_bundle
from edgespec.runtime.memory.measure import usage
from edgespec.runtime.models.kv import with_kv
from edgespec.runtime.models.model import Model
from edgespec.runtime.models.rows import HOLD, STEP, cache_bytes, hold_for
from tests.helpers.bundles import attention_graph, make_attention_bundle, write_bundle
from tests.helpers.onnxruntime import needs_quantised_kv

WINDOW, CAPACITY = 24, 1024
TEXT = np.random.default_rng(1).integers(0, 256, 900).tolist()
PROMPT = [7, 8, 9, 10] * 4
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems keep all rows")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder of which one layer has a window and the other none, and a draft that often agrees with it."""
    folder = tmp_path_factory.mktemp("windows") / "b"
    quantised = Quantisation("search", 8, 32)  # only in name: what is kept depends on it
    options: dict[str, Any] = {"draft_noise": 0.1, "window": WINDOW, "chat": True, "capacity": CAPACITY, "quantisation": quantised}
    return make_attention_bundle(folder, kv=("float32", "int8"), **options)


KV = pytest.mark.parametrize("kv", ["float32", pytest.param("int8", marks=needs_quantised_kv)])


def open_model(bundle: Path, hold: int | None, kv: str = "float32") -> Model:
    spec = with_kv(open_bundle(bundle), kv).target
    return Model(bundle / spec.graph, spec, capacity=CAPACITY, threads=1, providers=["CPUExecutionProvider"], hold=hold)


def poison(model: Model) -> None:
    """Rows that are gone are zeros; make them numbers that would show."""
    for store, window in zip(model._stores, model._store_windows(), strict=True):
        store[:, :, : model._gone.get(window, 0)] = 100


@KV
@pytest.mark.parametrize("size", [1, 3, 100])
def test_every_pass_gives_the_bits_of_the_full_cache(bundle: Path, size: int, kv: str) -> None:
    bounded, full = open_model(bundle, HOLD, kv), open_model(bundle, None, kv)
    for start in range(0, 600, size):
        tokens = TEXT[start : start + size]
        assert np.array_equal(bounded.run(tokens, range(len(tokens))), full.run(tokens, range(len(tokens))))
        if start % 300 == 0:
            poison(bounded)
    gone = bounded._gone[WINDOW]
    assert 600 - WINDOW - HOLD - STEP < gone <= 600 - WINDOW - HOLD + 1
    assert full._gone == {WINDOW: 0}
    for mine, whole in zip(bounded.cache_rows(gone, 600), full.cache_rows(gone, 600), strict=True):
        assert np.array_equal(mine, whole)


@KV
@pytest.mark.parametrize("back", [1, 5, WINDOW, HOLD - STEP, HOLD])
def test_a_rollback_goes_on_exactly_over_rows_that_were_let_go_since(bundle: Path, back: int, kv: str) -> None:
    """Chains and trees after every rollback, at all distances from where rows were last let go."""
    bounded, full = open_model(bundle, HOLD, kv), open_model(bundle, None, kv)
    for length in range(HOLD + 2 * WINDOW, HOLD + 2 * WINDOW + 3 * STEP, 29):
        for model in (bounded, full):
            model.keep(0)
            for start in range(0, length, 50):
                model.run(TEXT[start : min(start + 50, length)], [0])
        bounded.keep(length - back)
        assert bounded.length == length - back
        full.keep(length - back)
        poison(bounded)
        logits = [model.run([1, 2, 3, 4, 5], range(5), parents=[-1, -1, 0, 1, 3]).copy() for model in (bounded, full)]
        assert np.array_equal(*logits)
        for model in (bounded, full):
            model.keep_path(length - back, (1, 3, 4))
        assert np.array_equal(*(model.run([6, 7], range(2)) for model in (bounded, full)))


def test_a_rollback_that_is_too_deep_keeps_no_row(bundle: Path) -> None:
    model = open_model(bundle, HOLD)
    for start in range(0, 800, 100):
        model.run(TEXT[start : start + 100], [0])
    gone = model._gone[WINDOW]
    model.keep(gone + WINDOW - 1)
    assert model.length == gone + WINDOW - 1
    model.keep_common([*TEXT[: gone + WINDOW - 2], 1, 2, 3])
    assert model.length == 0
    found = model.run(TEXT[:50], [49]).copy()
    assert np.array_equal(found, open_model(bundle, None).run(TEXT[:50], [49]))


def test_rows_are_set_aside_and_restored(bundle: Path) -> None:
    model, other = open_model(bundle, HOLD), open_model(bundle, HOLD)
    for start in range(0, 800, 100):
        model.run(TEXT[start : start + 100], [0])
    stored = model.cache_rows(0, 800)
    assert [array.shape[2] for array in stored] == [800, 800, *[800 - model._gone[WINDOW]] * 2]
    assert other.restore_rows(TEXT[:800], stored)
    assert other._gone == model._gone
    assert np.array_equal(other.run([1, 2], range(2)), model.run([1, 2], range(2)))
    short = [*stored[:2], *(array[:, :, -WINDOW + 2 :] for array in stored[2:])]
    assert not other.restore_rows(TEXT[:800], short), "a row in sight is missing"
    assert not other.restore_rows(TEXT[:800], [stored[0][:, :, 1:], *stored[1:]])


@pytest.fixture
def engines(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Engine, Engine]]:
    """With bounded windows, and with all rows."""
    with load(bundle, threads=1) as bounded:
        assert bounded._model("target").hold == HOLD
        monkeypatch.setattr("edgespec.runtime.providers.profiles.hold_for", lambda _: None)
        with load(bundle, threads=1) as full:
            assert full._model("target").hold is None
            yield bounded, full


def test_long_texts_are_those_of_the_full_cache_with_every_drafter(engines: tuple[Engine, Engine]) -> None:
    bounded, full = engines
    options: dict[str, Any] = {"max_new_tokens": 800, "ignore_eos": True}
    plain = full.generate(PROMPT, drafter="none", **options)
    assert plain.stats.exactness == "exact"
    for drafter in ("none", "ngram", "draft", "tree"):
        found = bounded.generate(PROMPT, drafter=drafter, **({} if drafter == "none" else {"draft_length": 4}), **options)
        assert found.token_ids == plain.token_ids
        assert bounded._model("target")._gone[WINDOW] > 300
    again = bounded.generate([*PROMPT, *plain.token_ids[:100], 1], max_new_tokens=20)
    assert again.stats.reused_tokens == 0, "too deep a rollback"
    assert again.token_ids == full.generate([*PROMPT, *plain.token_ids[:100], 1], max_new_tokens=20).token_ids


def test_a_conversation_reuses_its_rows_and_is_restored(engines: tuple[Engine, Engine], tmp_path: Path) -> None:
    bounded, full = engines
    texts = []
    for engine in (bounded, full):
        chat = engine.chat(max_new_tokens=400, ignore_eos=True)
        chat.send("hello").result()
        engine.chat(max_new_tokens=5).send("others").result()
        chat.save(tmp_path / "saved")
        second = chat.send("more", max_new_tokens=50).result()
        assert second.stats.reused_tokens > 400
        restored = engine.restore_chat(tmp_path / "saved", max_new_tokens=50, ignore_eos=True).send("more").result()
        assert restored.stats.reused_tokens > 400
        texts += [second.token_ids, restored.token_ids]
    assert all(text == texts[0] for text in texts)


def test_the_plan_counts_what_is_held(bundle: Path) -> None:
    spec = open_bundle(bundle).target
    wide, narrow = (4 * 2 * layer.heads * layer.key_dim for layer in spec.layers)
    assert cache_bytes(spec, CAPACITY) == CAPACITY * (wide + narrow)
    assert cache_bytes(spec, CAPACITY, HOLD, 128) == CAPACITY * wide + (WINDOW + HOLD + STEP + 128) * narrow
    parts = {part.name: part.private for part in plan_bundle(bundle).parts}
    assert parts["KV cache of target"] == cache_bytes(spec, CAPACITY, HOLD, 128)
    assert hold_for(dataclasses.replace(spec, quantisation=Quantisation("none", 32))) is None
    assert hold_for(dataclasses.replace(spec, layers=spec.layers[:1])) is None


def test_memory_goes_back_to_the_system(tmp_path: Path) -> None:
    """Rows of 4 kB in a layer with a window: of 1,900 about 400 stay."""
    layers = (KvLayer(heads=2, key_dim=8, value_dim=8), KvLayer(heads=2, key_dim=512, value_dim=512, window=WINDOW))
    graph = attention_graph(layers, 0)
    folder = write_bundle(tmp_path / "b", {"target": graph}, {"target": layers}, chat=False, capacity=2048)
    spec = open_bundle(folder).target
    taken = {}
    for hold in (None, HOLD):
        model = Model(folder / spec.graph, spec, capacity=2048, threads=1, providers=["CPUExecutionProvider"], hold=hold)
        model.run(TEXT[:1], [0])
        before = usage().private
        for _ in range(19):
            model.run(TEXT[:100], [0])
        taken[hold] = usage().private - before
        model.trim()
        del model
    rows = 2 * 2 * 512 * 4  # key and value, two heads
    assert taken[None] - taken[HOLD] > 0.9 * rows * (1900 - WINDOW - HOLD - STEP - 100)
