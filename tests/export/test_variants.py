"""Profiles with a graph for passes of any width (webgpu): against torch, against the usual graph, and speculation against plain decoding.

They run on the CPU here, and on their own provider where it and a device are there.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from transformers import AutoConfig

from edgespec.errors import BundleError, UsageError
from edgespec.export import ExportReport
from edgespec.manifest import read_manifest
from edgespec.runtime import load, providers
from edgespec.runtime.model import Model
from edgespec.runtime.placement import Placement, Placements
from edgespec.runtime.profiles import open_model, profile_spec
from edgespec.runtime.session import DEFAULT_PROVIDERS
from tests.export.conftest import export
from tests.export.test_families import IDS, TOLERANCE, Reference, sequence_distances, tree_distances
from tests.helpers.checkpoints import CAPACITY, make_checkpoint
from tests.helpers.graphs import operators, places

WIDTHS = (1, 8, 16)


def open_variant(bundle: Path, profile: str, place: Placement | None = None, name: str = "target") -> Model:
    spec = profile_spec(read_manifest(bundle).models[name], profile, name)
    return open_model(bundle, spec, place or Placement(DEFAULT_PROVIDERS, 1, profile=profile), capacity=CAPACITY)


@pytest.fixture(scope="module", params=["llama", "qwen3", "gemma3_text"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("variants") / "checkpoint", request.param)


@pytest.fixture(scope="module")
def report(checkpoint: Path) -> ExportReport:
    """Every profile in one bundle. The Llama drafts for itself, so that all is accepted; the others' first layer, so that next to
    nothing is."""
    itself = AutoConfig.from_pretrained(checkpoint).model_type == "llama"
    draft = str(checkpoint) if itself else "layers:1"
    return export(checkpoint, checkpoint.parent / "bundle", draft=draft, profiles=("cpu", "webgpu", "npu"), npu_widths=WIDTHS)


@pytest.fixture(scope="module")
def bundle(report: ExportReport) -> Path:
    return report.output


def test_webgpu_equals_torch_through_prefill_trees_and_rollback(checkpoint: Path, bundle: Path) -> None:
    model, reference = open_variant(bundle, "webgpu"), Reference(checkpoint)
    for name, difference in (sequence_distances(model, reference) | tree_distances(model, reference)).items():
        assert difference < TOLERANCE, name


def test_all_profiles_share_the_bytes_of_the_weights(report: ExportReport, bundle: Path) -> None:
    graphs = sorted(bundle.glob("target.*.onnx"))
    assert {path.name.split(".")[1] for path in graphs} == {"webgpu", "npu"}
    for path in graphs:
        assert len(places(path)) > 10
        assert places(path) <= places(bundle / "target.onnx"), path.name
    assert [file.name for file in report.manifest.files if file.name.endswith(".bin")] == ["weights.bin"]


def test_all_profiles_share_quantised_weights(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint", "qwen3")
    alone = export(checkpoint, tmp_path / "alone", weights="int8")
    bundle = export(checkpoint, tmp_path / "bundle", weights="int8", profiles=("webgpu", "npu"), npu_widths=WIDTHS)
    assert bundle.sizes["weights.bin"] == alone.sizes["weights.bin"]
    for path in bundle.output.glob("target.*.onnx"):
        assert places(path) == places(bundle.output / "target.onnx"), path.name
    with load(bundle.output, profile="webgpu", threads=1) as engine:
        plain = engine.generate(IDS[:20], drafter="none", max_new_tokens=30, ignore_eos=True)
        assert engine.generate(IDS[:20], drafter="ngram", max_new_tokens=30, ignore_eos=True).token_ids == plain.token_ids


def test_webgpu_has_the_operators_that_it_does_right(bundle: Path) -> None:
    graph = onnx.load(bundle / "target.webgpu.onnx", load_external_data=False).graph
    attentions = [node for node in graph.node if node.op_type == "GroupQueryAttention"]
    assert len(attentions) == 3
    for node in attentions:
        assert {item.name: item.i for item in node.attribute}["do_rotary"] == 0
        assert node.input[1], "keys are an input of their own"
        assert node.input[10], "trees need the bias"
    found = operators(bundle / "target.webgpu.onnx")
    assert found["RotaryEmbedding"] == 6
    assert {"FusedMatMul", "Cos", "Sin", "Range", "Shape"}.isdisjoint(found)


@pytest.mark.parametrize("profile", ["webgpu"])
def test_speculation_writes_the_plain_text(bundle: Path, profile: str) -> None:
    with load(bundle, profile=profile, threads=1) as engine:
        for prompt in (IDS[:5], IDS[:40]):
            plain = engine.generate(prompt, drafter="none", max_new_tokens=30, ignore_eos=True)
            for drafter in ("draft", "ngram", "tree"):
                for length in (4, "auto"):
                    found = engine.generate(prompt, drafter=drafter, draft_length=length, max_new_tokens=30, ignore_eos=True)
                    assert found.token_ids == plain.token_ids, (drafter, length)


@pytest.mark.parametrize("checkpoint", ["llama"], indirect=True)
def test_models_of_a_pair_can_run_other_profiles(bundle: Path) -> None:
    with load(bundle, threads=1) as engine:
        plain = engine.generate(IDS[:20], drafter="none", max_new_tokens=30, ignore_eos=True)
    with load(bundle, profile="draft=webgpu", threads=1) as engine:
        found = engine.generate(IDS[:20], drafter="draft", draft_length=4, max_new_tokens=30, ignore_eos=True)
    assert found.token_ids == plain.token_ids
    assert found.stats.accepted == found.stats.drafted > 0


@pytest.mark.parametrize("profile", ["webgpu", "npu"])
def test_a_profile_that_the_bundle_does_not_have(pair: ExportReport, profile: str) -> None:
    wanted = rf"no {profile} profile of its target; export it with --profile {profile}, or run .*--profile target=cpu"
    with pytest.raises(BundleError, match=wanted):
        load(pair.output, profile=profile)


def test_a_profile_that_there_is_not(tmp_path: Path, llama: Path) -> None:
    with pytest.raises(UsageError, match="--profile: 'tpu' is unknown; choose one of cpu, webgpu, npu"):
        export(llama, tmp_path / "bundle", profiles=("tpu",))


@pytest.mark.parametrize(("provider", "profile"), [("cpu", "cpu"), ("webgpu", "webgpu"), ("qnn", "npu"), ("coreml", "cpu")])
def test_a_provider_picks_its_profile(monkeypatch: pytest.MonkeyPatch, provider: str, profile: str) -> None:
    monkeypatch.setattr(providers, "is_present", lambda _: True)
    monkeypatch.setattr(providers, "_module", lambda _: None)
    assert Placements.of(provider).of_model("target").profile == profile


@pytest.fixture(params=["webgpu"])
def place(request: pytest.FixtureRequest) -> Placement:
    """A provider with a profile of its own, where this machine has it."""
    name: str = request.param
    if name not in providers.present():
        pytest.skip(f"{name} is not installed here: {providers.provider(name).get}")
    try:
        return Placements.of(name, threads=1, strict=True).of_model("target")
    except UsageError as error:
        pytest.skip(str(error))


def test_a_provider_computes_what_torch_does(checkpoint: Path, bundle: Path, place: Placement) -> None:
    """A prompt, a draft that is rejected, a tree of which a branch is kept, one by one; and strict: every node is there."""
    model, reference = open_variant(bundle, place.profile, place), Reference(checkpoint)
    limit = 1e-2 * reference(IDS[:60]).std()
    for name, difference in (sequence_distances(model, reference) | tree_distances(model, reference)).items():
        assert difference < limit, name


def test_speculation_on_a_provider_writes_its_plain_text(bundle: Path, place: Placement) -> None:
    """Whole pairs on it, and pairs of it and the CPU."""
    name = providers.provider(place.providers[0].name).short
    for placed in (name, f"target={name},draft=cpu", f"target=cpu,draft={name}"):
        with load(bundle, providers=placed, threads=1) as engine:
            plain = engine.generate(IDS[:20], drafter="none", max_new_tokens=20, ignore_eos=True)
            for drafter in ("ngram", "draft", "tree"):
                found = engine.generate(IDS[:20], drafter=drafter, draft_length=3, max_new_tokens=20, ignore_eos=True)
                assert found.token_ids == plain.token_ids, (placed, drafter)
