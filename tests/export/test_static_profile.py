"""The npu profile: graphs of fixed shapes against torch, against the usual graph, and speculation on them against plain decoding.

They run on the CPU here; tests/export/test_qnn.py runs them on the emulator of an NPU.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

import numpy as np
import onnx
import pytest
from transformers import AutoConfig

from edgespec.errors import BundleError, CapacityError, UnsupportedModelError, UsageError
from edgespec.export import ExportReport
from edgespec.manifest import Compiled, Manifest, StaticGraph, parse_manifest, read_manifest
from edgespec.runtime import load
from edgespec.runtime.exactness import find_equal_widths
from edgespec.runtime.models.model import Model
from edgespec.runtime.providers.compiling import compile_bundle
from edgespec.runtime.providers.placement import Placement
from edgespec.runtime.providers.profiles import open_model, static_spec
from edgespec.runtime.providers.session import DEFAULT_PROVIDERS
from tests.export.conftest import export
from tests.export.test_families import IDS, TOLERANCE, Reference, sequence_distances, tree_distances
from tests.helpers.checkpoints import CAPACITY, make_checkpoint
from tests.helpers.graphs import places
from tests.helpers.speculation import assert_a_draft_elsewhere_serves, assert_plain_text

WIDTHS = (1, 8, 16)
ON_CPU = Placement(DEFAULT_PROVIDERS, 1, profile="npu")


def open_static(bundle: Path, name: str = "target", usual: bool = False) -> Model:
    if usual:
        return open_model(bundle, read_manifest(bundle).models[name], Placement(DEFAULT_PROVIDERS, 1), capacity=CAPACITY)
    spec = static_spec(read_manifest(bundle).models[name], "npu", name)
    return open_model(bundle, spec, ON_CPU, capacity=CAPACITY)


@pytest.fixture(scope="module", params=["llama", "qwen3", "gemma3_text"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("static") / "checkpoint", request.param)


@pytest.fixture(scope="module")
def report(checkpoint: Path) -> ExportReport:
    """The Llama drafts for itself, so that all is accepted; the others' first layer, so that next to nothing is."""
    itself = AutoConfig.from_pretrained(checkpoint).model_type == "llama"
    draft = str(checkpoint) if itself else "layers:1"
    return export(checkpoint, checkpoint.parent / "bundle", draft=draft, profiles=("npu",), npu_widths=WIDTHS)


@pytest.fixture(scope="module")
def bundle(report: ExportReport) -> Path:
    return report.output


def test_equals_torch_through_prefill_trees_and_rollback(checkpoint: Path, bundle: Path) -> None:
    model, reference = open_static(bundle), Reference(checkpoint)
    for name, difference in (sequence_distances(model, reference) | tree_distances(model, reference)).items():
        assert difference < TOLERANCE, name


def test_a_rejected_row_leaves_no_trace(bundle: Path) -> None:
    """The cache behind the rows that are kept may hold anything that is a number."""
    model, other = open_static(bundle), open_static(bundle)
    model.run(IDS[:20], [0])
    model.run([1, 2, 3, 4], range(4), (-1, 0, 0, 1))
    model.keep_path(20, (0, 2))
    for store in model._stores:
        store[:, :, model.length :] = 1e3
    other.run([*IDS[:20], 1, 3], [0])
    np.testing.assert_allclose(model.run(IDS[30:35], range(5)), other.run(IDS[30:35], range(5)), atol=1e-4)
    assert model.tokens == other.tokens


def test_the_cache_can_be_filled_to_its_last_row(bundle: Path) -> None:
    """Padding beyond the last position is not in the way."""
    model, other = open_static(bundle), open_static(bundle)
    for token in IDS:
        other.run([token], [0])
    model.run(IDS[:-3], [0])
    last = model.run(IDS[-3:], range(3), width=8)
    assert model.length == CAPACITY
    other.keep(CAPACITY - 1)
    np.testing.assert_allclose(last[2], other.run(IDS[-1:], [0])[0], atol=1e-4)
    with pytest.raises(CapacityError, match=f"a pass of 1 tokens does not fit: {CAPACITY} of {CAPACITY}"):
        model.run([1], [0])
    model.keep(0)
    with pytest.raises(CapacityError, match="a tree of 9 tokens does not fit"):
        model.run(IDS[:9], range(9), [-1] * 9)


def test_all_graphs_share_the_bytes_of_the_weights(report: ExportReport, bundle: Path) -> None:
    for path in bundle.glob("target.npu.*.onnx"):
        assert len(places(path)) > 10
        assert places(path) <= places(bundle / "target.onnx")
    profiles = report.manifest.target.profiles
    assert profiles is not None
    assert [(graph.width, graph.rows) for graph in profiles["npu"].graphs] == [(1, 1), (8, 8), (16, 8)]
    assert profiles["npu"].capacity == CAPACITY


def test_shapes_are_fixed_and_operators_standard(bundle: Path) -> None:
    for path in sorted(bundle.glob("target.npu.*.onnx")):
        graph = onnx.load(path, load_external_data=False).graph
        for value in (*graph.input, *graph.output):
            assert all(dim.dim_value > 0 for dim in value.type.tensor_type.shape.dim), f"{path.name}: {value.name}"
        assert {node.domain for node in graph.node} <= {""}, path.name
        assert {"Cos", "Sin", "Range", "Shape"}.isdisjoint(node.op_type for node in graph.node), "angles are looked up"


def test_speculation_writes_the_plain_text(bundle: Path) -> None:
    with load(bundle, profile="npu", threads=1) as engine:
        assert engine.manifest.target.max_width == 8
        assert_plain_text(engine, (IDS[:5], IDS[:40]))
        with pytest.raises(UsageError, match=r"draft_length: 8 is more than 7.* or export with --npu-widths that have 9"):
            engine.generate(IDS[:5], drafter="draft", draft_length=8)
        with pytest.raises(CapacityError, match=rf"the prompt has {CAPACITY + 1} tokens and the cache holds {CAPACITY}; shorten"):
            engine.generate([*IDS, 1], drafter="none")
    with pytest.raises(UsageError, match=rf"context: {CAPACITY + 1} is more than the {CAPACITY} tokens .* with --context"):
        load(bundle, profile="npu", context=CAPACITY + 1)


@pytest.mark.parametrize("checkpoint", ["llama"], indirect=True)
def test_models_of_a_pair_can_run_other_profiles(bundle: Path) -> None:
    assert_a_draft_elsewhere_serves(bundle, IDS[:20], profile="draft=npu")


def test_the_self_test_proves_no_more_than_the_graphs(bundle: Path) -> None:
    found = find_equal_widths(open_static(bundle), 256)
    assert set(found.widths) <= set(range(1, 9)) | {16}


def test_quantised_weights_are_shared_too(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint", "qwen3")
    bundle = export(checkpoint, tmp_path / "bundle", weights="int8", profiles=("npu",), npu_widths=WIDTHS).output
    assert places(bundle / "target.npu.8.onnx") == places(bundle / "target.onnx")
    with load(bundle, profile="npu", threads=1) as engine:
        plain = engine.generate(IDS[:20], drafter="none", max_new_tokens=30, ignore_eos=True)
        assert engine.generate(IDS[:20], drafter="ngram", max_new_tokens=30, ignore_eos=True).token_ids == plain.token_ids


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        ("gemma2", {"sliding_window": 8}, "layer 0 caps its attention scores"),
        ("gpt_oss", {"num_local_experts": 2, "num_experts_per_tok": 1}, "layer 0 has attention sinks"),
    ],
)
def test_attention_that_cannot_be_expressed_is_refused(tmp_path: Path, architecture: str, changes: dict[str, object], message: str) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint", architecture, **changes)
    with pytest.raises(UnsupportedModelError, match=f"--profile npu: {message}"):
        export(checkpoint, tmp_path / "bundle", profiles=("npu",), npu_widths=WIDTHS)
    assert not (tmp_path / "bundle").exists()


def test_bad_widths(tmp_path: Path, llama: Path) -> None:
    for widths in ((1, 5), (5, 1, 64), (0, 5, 64), (1, 5, 5), (1, 5, 2000)):
        with pytest.raises(UsageError, match=r"--npu-widths: .* three or more ascending widths"):
            export(llama, tmp_path / "bundle", profiles=("npu",), npu_widths=widths)
    with pytest.raises(CapacityError, match=f"--npu-widths: a pass of 128 tokens is wider than the cache of {CAPACITY}"):
        export(llama, tmp_path / "bundle", profiles=("npu",), npu_widths=(1, 5, 128))


def test_a_profile_that_the_bundle_does_not_have(pair: ExportReport) -> None:
    with pytest.raises(BundleError, match=r"no npu profile of its target; export it with --profile npu, or run .*--profile target=cpu"):
        load(pair.output, profile="npu")
    with pytest.raises(UsageError, match="profile: the bundle has no model 'tarjet'"):
        load(pair.output, profile="tarjet=npu")


def test_a_manifest_with_impossible_graphs(report: ExportReport) -> None:
    def changed(**changes: object) -> Manifest:
        target = report.manifest.target
        assert target.profiles is not None
        profile = dataclasses.replace(target.profiles["npu"], **changes)  # type: ignore[arg-type]
        models = {**report.manifest.models, "target": dataclasses.replace(target, profiles={"npu": profile})}
        return parse_manifest(dataclasses.replace(report.manifest, models=models).to_json())

    graph = "target.onnx"
    for changes, message in (
        ({"capacity": CAPACITY + 1}, "capacity: 97 is not within the model's"),
        ({"graphs": ()}, "0 graphs are out of range"),
        ({"graphs": (StaticGraph("other.onnx", 1, 1),)}, "is not among the bundle's files"),
        ({"graphs": (StaticGraph(graph, 8, 8), StaticGraph(graph, 8, 8))}, "width: 8 is not ascending"),
        ({"graphs": (StaticGraph(graph, 8, 9),)}, "rows: 9 is not within the width"),
        ({"graphs": (StaticGraph(graph, 8, 1),)}, "none of them with logits for every row"),
    ):
        with pytest.raises(BundleError, match=message):
            changed(**changes)


def test_a_graph_that_is_not_the_manifests(bundle: Path) -> None:
    spec = static_spec(read_manifest(bundle).target, "npu", "target")
    assert spec.profiles is not None
    wrong = dataclasses.replace(spec.profiles["npu"], graphs=(StaticGraph("target.npu.8.onnx", 5, 5),))
    with pytest.raises(BundleError, match=r"target.npu.8.onnx: input attention_bias: tensor\(float\) \[1, 1, 8, 104\], by the manifest"):
        open_model(bundle, dataclasses.replace(spec, profiles={"npu": wrong}), ON_CPU, capacity=CAPACITY)


def test_only_graphs_of_fixed_shapes_are_compiled(bundle: Path, pair: ExportReport, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cpu runs the graph for passes of any width, which is not compiled"):
        compile_bundle(bundle, tmp_path / "b", "cpu", {})
    if importlib.util.find_spec("onnxruntime_qnn") is None:
        with pytest.raises(UsageError, match="qnn is not installed"):
            compile_bundle(pair.output, tmp_path / "b", "qnn", {})
    assert not (tmp_path / "b").exists()


def test_compiled_graphs_are_for_their_provider(bundle: Path) -> None:
    spec = static_spec(read_manifest(bundle).target, "npu", "target")
    assert spec.profiles is not None
    compiled = dataclasses.replace(spec.profiles["npu"], compiled=Compiled("QNNExecutionProvider", (), shared=True))
    with pytest.raises(BundleError, match="its npu graphs are compiled for qnn; run them with --providers qnn"):
        open_model(bundle, dataclasses.replace(spec, profiles={"npu": compiled}), ON_CPU, capacity=CAPACITY)


def test_a_tree_grows_pass_by_pass(bundle: Path) -> None:
    """As in the usual graph."""
    model, usual = open_static(bundle), open_static(bundle, usual=True)
    parents, logits = [-1, 0, 0, 2, 1], []
    for each in (model, usual):
        each.run(IDS[:20], [0])
        each.run([1, 2, 3], range(3), parents[:3])
        logits.append(each.run([4, 5], range(2), parents, trunk=20).copy())
    np.testing.assert_allclose(*logits, atol=1e-4)
    with pytest.raises(ValueError, match="take no features"):
        model.run([6], [0], features=np.zeros((1, 4), np.float32))
