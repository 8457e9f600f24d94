"""The model: cache in place, rollback, padding, trees. On real GroupQueryAttention, where a stale row would show."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec.bundle import open_bundle
from edgespec.errors import BundleError, CapacityError, RuntimeFailure
from edgespec.manifest import KvLayer, read_manifest
from edgespec.runtime.models import model as model_module
from edgespec.runtime.models.model import Model
from edgespec.tree import DraftTree
from tests.helpers.bundles import make_attention_bundle

TOKENS = np.random.default_rng(5).integers(0, 256, 64).tolist()


def open_model(bundle: Path, capacity: int = 64) -> Model:
    spec = open_bundle(bundle).target
    return Model(bundle / spec.graph, spec, capacity=capacity, threads=1, providers=["CPUExecutionProvider"])


@pytest.fixture
def model(attention_bundle: Path) -> Model:
    return open_model(attention_bundle)


def fresh(bundle: Path, tokens: list[int], rows: list[int]) -> np.ndarray:
    return open_model(bundle).run(tokens, rows).copy()


@pytest.mark.parametrize("window", [None, 1, 8, 29, 30])
def test_passes_of_any_size_equal_one_pass(tmp_path: Path, window: int | None) -> None:
    bundle = make_attention_bundle(tmp_path / "b", window=window)
    model = open_model(bundle)
    expected = fresh(bundle, TOKENS[:30], list(range(30)))
    out, start = [], 0
    for size in (7, 1, 1, 5, 2, 14):
        out.append(model.run(TOKENS[start : start + size], range(size)).copy())
        start += size
    np.testing.assert_allclose(np.concatenate(out), expected, atol=1e-4)
    assert model.tokens == TOKENS[:30]


@pytest.mark.parametrize("kept", [0, 1, 9, 19, 20])
def test_after_any_rollback_going_on_equals_a_fresh_run(model: Model, attention_bundle: Path, kept: int) -> None:
    model.run(TOKENS[:20], [0])
    model.keep(kept)
    other = TOKENS[40:50]
    expected = fresh(attention_bundle, TOKENS[:kept] + other, [kept + 9])
    np.testing.assert_allclose(model.run(other, [9]), expected, atol=1e-4)
    assert model.length == kept + 10


def test_a_window_hides_what_lies_before_it(tmp_path: Path) -> None:
    """The second layer of two sees 8 positions, the first all; a text as long as the window is as if there were none."""
    windowed, whole = make_attention_bundle(tmp_path / "w", window=8), make_attention_bundle(tmp_path / "n")
    for length, equal in ((8, True), (9, False), (20, False)):
        with_window, without = fresh(windowed, TOKENS[:length], [length - 1]), fresh(whole, TOKENS[:length], [length - 1])
        assert np.allclose(with_window, without, atol=1e-4) == equal


def test_padding_is_not_seen_and_not_kept(model: Model, attention_bundle: Path) -> None:
    model.run(TOKENS[:9], [0])
    logits = model.run(TOKENS[9:11], [0, 1], width=6).copy()
    assert model.length == 11
    np.testing.assert_allclose(logits, fresh(attention_bundle, TOKENS[:11], [9, 10]), atol=1e-4)
    after = model.run(TOKENS[11:12], [0])
    np.testing.assert_allclose(after, fresh(attention_bundle, TOKENS[:12], [11]), atol=1e-4)


TREES = [
    DraftTree((5, 6, 7), (-1, 0, -1)),
    DraftTree((5, 6, 7, 8, 9, 10), (-1, -1, 0, 1, 1, 4)),
    DraftTree((1, 2, 3, 4, 5, 6, 7), (-1, 0, 0, 1, 2, -1, 5)),
]


@pytest.mark.parametrize("window", [None, 8])
@pytest.mark.parametrize("tree", TREES)
def test_a_tree_equals_its_paths_as_chains(tmp_path: Path, tree: DraftTree, window: int | None) -> None:
    bundle = make_attention_bundle(tmp_path / "b", window=window)
    model, chain = open_model(bundle), open_model(bundle)
    prompt, root = TOKENS[:20], TOKENS[20]
    parents = (-1, *(parent + 1 for parent in tree.parents))
    for node in range(len(tree)):
        path = tree.ancestors(node)
        model.keep(0)
        model.run(prompt, [0])
        out = model.run((root, *tree.tokens), range(1 + len(tree)), parents).copy()
        chain.keep(0)
        expected = chain.run([*prompt, root, *(tree.tokens[step] for step in path)], [len(prompt) + len(path)]).copy()
        np.testing.assert_allclose(out[node + 1 : node + 2], expected, atol=1e-4)
        # Keeping the path and going on is as if only the path had been run.
        model.keep_path(len(prompt), (0, *(step + 1 for step in path)))
        assert model.tokens == chain.tokens
        np.testing.assert_allclose(model.run([33], [0]), chain.run([33], [0]), atol=1e-4)


@pytest.mark.parametrize("window", [None, 8])
@pytest.mark.parametrize("tree", TREES)
def test_a_tree_that_grows_pass_by_pass_equals_one_pass(tmp_path: Path, tree: DraftTree, window: int | None) -> None:
    bundle = make_attention_bundle(tmp_path / "b", window=window, features=True)
    model, once = open_model(bundle), open_model(bundle)
    tokens, parents = (TOKENS[20], *tree.tokens), (-1, *(parent + 1 for parent in tree.parents))
    for one in (model, once):
        one.run(TOKENS[:20], [0])
    expected = once.run(tokens, range(len(tokens)), parents).copy()
    for start, stop in ((0, 1), (1, 3), (3, len(tokens))):
        out = model.run(tokens[start:stop], range(stop - start), parents[:stop], width=stop - start + 1, trunk=20)
        np.testing.assert_allclose(out, expected[start:stop], atol=1e-4)
    np.testing.assert_allclose(model.features, once.features, atol=1e-4)
    with pytest.raises(ValueError, match="2 parents for a pass of 1 tokens"):
        model.run([1], [0], parents[:2], trunk=20)


def test_hidden_states_stay_with_their_rows(tmp_path: Path) -> None:
    model = open_model(make_attention_bundle(tmp_path / "b", features=True))
    model.run(TOKENS[:5], [0])
    model.run((7, 8, 9), [0], (-1, -1, 1), width=4)
    states = model.features.copy()
    model.keep_path(5, (1, 2))
    np.testing.assert_array_equal(model.features, states[[0, 1, 2, 3, 4, 6, 7]])
    model.run([4], [0])
    np.testing.assert_array_equal(model.features[:7], states[[0, 1, 2, 3, 4, 6, 7]])
    rows, tokens, kept = model.cache_rows(0, 6), model.tokens[:6], model.features[:6].copy()
    model.keep(0)
    model.run(TOKENS[:8], [0])
    assert model.restore_rows(tokens, rows)
    np.testing.assert_array_equal(model.features, kept)
    assert not model.restore_rows(tokens, rows[:-1])


def test_bindings_of_all_sizes_share_buffers(model: Model, attention_bundle: Path) -> None:
    for width, count in itertools.product((1, 3, 2), (1, 2, 3)):
        model.keep(0)
        rows = [index % width for index in range(count)]
        np.testing.assert_allclose(model.run(TOKENS[:width], rows), fresh(attention_bundle, TOKENS[:width], rows), atol=1e-4)


@pytest.mark.parametrize("kv", ["float32", "int8", "int4"])
@pytest.mark.parametrize("window", [None, 20, 90])
def test_a_bias_for_more_rows_than_there_are_changes_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kv: str, window: int | None
) -> None:
    """Chains and trees of one size in turn, through a window and back into it and up to the last row, beside a model that binds its
    bias for each pass."""
    bundle = make_attention_bundle(tmp_path / "b", kv=(kv,), window=window)
    often, seldom = open_model(bundle, capacity=150), open_model(bundle, capacity=150)
    bound: list[Model] = []
    bias = Model._bias
    monkeypatch.setattr(Model, "_bias", lambda self, *about: (bound.append(self), bias(self, *about))[1])
    kinds: list[tuple[int, tuple[int, ...] | None]] = [
        (1, None),
        (4, None),
        (4, (-1, -1, 1, 0)),
        (1, None),
        (4, None),
        (1, None),
        (3, None),
    ]
    passes = [*itertools.islice(itertools.cycle(kinds), 50)]

    def go_on(pairs: Sequence[tuple[int, tuple[int, ...] | None]]) -> None:
        for number, (width, parents) in enumerate(pairs):
            logits = []
            for model, span in ((often, 1), (seldom, model_module.SPAN)):
                with monkeypatch.context() as patched:
                    patched.setattr(model_module, "SPAN", span)
                    logits.append(model.run(TOKENS[number : number + width], range(width), parents).copy())
            np.testing.assert_array_equal(*logits)

    go_on(passes)
    for model in (often, seldom):
        model.keep(10)
        model.trim()
    go_on(passes)
    go_on([(1, None)] * (150 - often.length))
    assert often.length == 150
    for one, other in zip(often._caches, seldom._caches, strict=True):
        np.testing.assert_array_equal(one, other)
    assert bound.count(seldom) < bound.count(often)


def test_an_interrupted_binding_is_made_again(model: Model, attention_bundle: Path) -> None:
    """A signal is raised behind the binding of a tree's bias; the next chain has another one."""
    model.run(TOKENS[:20], [0])
    model.run([1, 2, 3, 4], range(4))
    model.keep(20)
    bound = model._binding(4, 4, 4)
    binding = bound.binding

    class Interrupted:
        def bind_input(self, *about: Any) -> None:
            binding.bind_input(*about)
            raise KeyboardInterrupt

    bound.binding = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        model.run([1, 2, 3, 4], range(4), (-1, -1, 1, 0))
    bound.binding = binding
    logits = model.run([1, 2, 3, 4], range(4))
    np.testing.assert_allclose(logits, fresh(attention_bundle, [*TOKENS[:20], 1, 2, 3, 4], [20, 21, 22, 23]), atol=1e-4)


def test_what_is_bound_for_every_pass_is_bound_as_it_is(model: Model) -> None:
    """Kernels of other providers may go by the number of rows that they are told."""
    model._binds_once = False
    for count in (3, 1, 2):
        model.run(TOKENS[:count], [0])
        assert model._total[0] == model.length


def test_keep_common(model: Model) -> None:
    model.run([1, 2, 3, 4], [0])
    model.keep_common([1, 2, 9, 4, 5])
    assert model.tokens == [1, 2]
    model.keep_common([1, 2])
    assert model.tokens == [1], "one token is left to run"
    model.keep_common([1])
    assert model.tokens == []


@pytest.mark.parametrize("rows", [(1, 0), (0, 0), (0, 5)])
def test_keep_path_refuses_what_is_not_there(model: Model, rows: tuple[int, ...]) -> None:
    model.run([1, 2, 3, 4], [0])
    with pytest.raises(ValueError, match="not ascending rows"):
        model.keep_path(0, rows)
    with pytest.raises(ValueError, match="cannot keep"):
        model.keep(5)


def test_full_cache(attention_bundle: Path) -> None:
    model = open_model(attention_bundle, capacity=10)
    model.run(TOKENS[:8], [0])
    with pytest.raises(CapacityError, match="8 of 10"):
        model.run([1, 2, 3], [0])
    model.run([1, 2], [0])
    assert model.length == 10


def test_a_refused_pass_leaves_the_cache_as_it_was(model: Model) -> None:
    model.run(TOKENS[:8], [0])
    with pytest.raises(RuntimeFailure, match="a pass of 1 tokens after 8 failed"):
        model.run([10**6], [0])  # no such token
    assert model.length == 8


def test_a_graph_that_is_not_the_manifests(attention_bundle: Path) -> None:
    spec = open_bundle(attention_bundle).target

    def load(**changes: object) -> Model:
        changed = dataclasses.replace(spec, **changes)  # type: ignore[arg-type]
        return Model(attention_bundle / spec.graph, changed, capacity=32, threads=1, providers=["CPUExecutionProvider"])

    with pytest.raises(BundleError, match=r"logits is .* the manifest says"):
        load(vocab_size=1000)
    with pytest.raises(BundleError, match=r"no input past_key_values\.2\.key"):
        load(layers=(*spec.layers, KvLayer(1, 8, 8)))
    with pytest.raises(BundleError, match=r"input past_key_values\.1\.key that the manifest does not know"):
        load(layers=spec.layers[:1])
    with pytest.raises(BundleError, match=r"past_key_values\.0\.key is tensor\(float\)"):
        load(kv_dtype="float16")


def test_a_damaged_graph_is_one_line(tmp_path: Path) -> None:
    bundle = make_attention_bundle(tmp_path / "b")
    graph = bundle / "target.onnx"
    data = bytearray(graph.read_bytes())
    graph.write_bytes(bytes(data[: len(data) // 2]))
    spec = read_manifest(bundle).target
    with pytest.raises(RuntimeFailure, match="cannot load this graph") as caught:
        Model(graph, spec, capacity=32, threads=1, providers=["CPUExecutionProvider"])
    assert "\n" not in str(caught.value)
