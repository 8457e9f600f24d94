"""Profiles with graphs for passes of any width (webgpu, cuda): against torch and the usual graph, and speculation against plain decoding.

They run on the CPU here, and on their own provider where it and a device are there.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from edgespec.errors import BundleError, CapacityError, ExportError, OutOfMemory, UnsupportedModelError, UsageError
from edgespec.export import ExportReport
from edgespec.manifest import read_manifest
from edgespec.runtime import load
from edgespec.runtime.exactness import find_equal_widths
from edgespec.runtime.models import device_model
from edgespec.runtime.models.device_model import DeviceModel
from edgespec.runtime.models.model import Model
from edgespec.runtime.providers import providers
from edgespec.runtime.providers.placement import Placement, Placements
from edgespec.runtime.providers.profiles import open_model, profile_spec
from edgespec.runtime.providers.session import DEFAULT_PROVIDERS, Choice
from tests.export.conftest import export
from tests.export.test_families import IDS, TOLERANCE, Reference, sequence_distances, tree_distances
from tests.helpers.bundles import VOCAB
from tests.helpers.checkpoints import CAPACITY, make_checkpoint
from tests.helpers.graphs import operators, places
from tests.helpers.speculation import assert_a_draft_elsewhere_serves, assert_plain_text

PROFILES = ("cpu", "cuda", "webgpu", "npu")
WIDTHS = (1, 8, 16)
HALF = 1e-2  # of the spread of logits, that 16-bit floats may cost


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
    return export(checkpoint, checkpoint.parent / "bundle", draft=draft, profiles=PROFILES, npu_widths=WIDTHS)


@pytest.fixture(scope="module")
def bundle(report: ExportReport) -> Path:
    return report.output


def scale_embedding(checkpoint: Path, factor: float) -> None:
    tensors = load_file(checkpoint / "model.safetensors")
    tensors["model.embed_tokens.weight"] *= factor
    save_file(tensors, checkpoint / "model.safetensors", {"format": "pt"})


def test_webgpu_equals_torch_through_prefill_trees_and_rollback(checkpoint: Path, bundle: Path) -> None:
    model, reference = open_variant(bundle, "webgpu"), Reference(checkpoint)
    for name, difference in (sequence_distances(model, reference) | tree_distances(model, reference)).items():
        assert difference < TOLERANCE, name


def test_cuda_equals_torch_as_far_as_16_bits_go(checkpoint: Path, bundle: Path) -> None:
    """Its kernels run on the CPU, too, if slowly; what has none there is computed in 32 bits between two casts."""
    model, reference = open_variant(bundle, "cuda"), Reference(checkpoint)
    limit = HALF * reference(IDS[:60]).std()
    for name, difference in (sequence_distances(model, reference) | tree_distances(model, reference)).items():
        assert difference < limit, name


def test_cuda_keeps_16_bits_on_the_device_and_gives_32(bundle: Path) -> None:
    chains, trees = (onnx.load(bundle / f"target.cuda.{name}", load_external_data=False).graph for name in ("onnx", "tree.onnx"))
    half, full = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
    for graph in (chains, trees):
        types = {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}
        assert {kind for name, kind in types.items() if name.startswith(("past", "present", "attention_bias"))} == {half}
        assert types["logits"] == types["top_logits"] == full
    assert not [value.name for value in chains.input if value.name.startswith("attention_bias")]
    assert [value.name for value in trees.input if value.name.startswith("attention_bias")]
    for node in chains.node:
        if node.op_type == "GroupQueryAttention":
            assert not any(node.input[10:11]), "flash attention takes no bias"


@pytest.mark.parametrize(("profile", "dtype"), [("cuda", np.float16), ("webgpu", np.float32)])
def test_rows_can_be_taken_and_put_back(bundle: Path, profile: str, dtype: type) -> None:
    """As a conversation that waits does, behind a branch that was kept."""
    model, other = open_variant(bundle, profile), open_variant(bundle, profile)
    model.run(IDS[:20], [0])
    model.run([1, 2, 3, 4], range(4), (-1, 0, 0, 2))
    model.keep_path(20, (0, 2, 3))
    rows = model.cache_rows(0, model.length)
    assert {array.dtype for array in rows} == {np.dtype(dtype)}
    assert other.restore_rows(model.tokens, rows)
    np.testing.assert_array_equal(other.run(IDS[30:33], range(3)), model.run(IDS[30:33], range(3)))
    assert not other.restore_rows(model.tokens[:-1], rows)
    with pytest.raises(ValueError, match="takes no features"):
        model.run([6], [0], features=np.zeros((1, 4), np.float32))
    with pytest.raises(CapacityError, match=f"a pass of {CAPACITY} tokens does not fit"):
        model.run(IDS, [0])


def test_the_likeliest_tokens_come_back_alone_when_they_decide(bundle: Path) -> None:
    few, all_ = open_variant(bundle, "cuda"), open_variant(bundle, "cuda")
    few.best = 2
    for tokens in (IDS[:20], IDS[20:25], IDS[25:27]):
        found, wanted = (model.run(tokens, range(len(tokens))) for model in (few, all_))
        assert (np.isfinite(found).sum(1) == 64).all(), "the rest is minus infinity, also after a pass that named others"
        np.testing.assert_array_equal(found[np.isfinite(found)], wanted[np.isfinite(found)])
        np.testing.assert_array_equal(found.argmax(1), wanted[:, :VOCAB].argmax(1))
        assert not np.isfinite(found[:, VOCAB:]).any(), "padding of the head is not named"
    few.best = 65
    assert np.isfinite(few.run([1], [0])).all(), "more are needed than the graph names"


@pytest.mark.parametrize("checkpoint", ["llama"], indirect=True)
def test_widths_are_equal_only_if_the_graph_of_trees_agrees(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, run = open_variant(bundle, "cuda"), DeviceModel.run
    assert find_equal_widths(model, VOCAB).grade == "exact", "on this machine the two graphs give the same bits"

    def run_otherwise(self: DeviceModel, tokens: Any, rows: Any, parents: Any = None, *more: Any, **keywords: Any) -> Any:
        return run(self, tokens, rows, parents, *more, **keywords) + (0 if parents is None else np.float32(0.01))

    monkeypatch.setattr(DeviceModel, "run", run_otherwise)
    assert find_equal_widths(model, VOCAB).grade != "exact"


@pytest.mark.parametrize("checkpoint", ["llama"], indirect=True)
@pytest.mark.parametrize(
    ("options", "best"),
    [
        ({}, 2),
        ({"do_sample": True, "top_k": 5, "seed": 3}, 5),
        ({"do_sample": True, "seed": 3, "top_k": 0}, None),
        ({"repetition_penalty": 1.3}, None),
        ({"banned_tokens": (65,)}, None),
    ],
)
def test_what_is_asked_of_the_device_does_not_change_the_text(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object], best: int | None
) -> None:
    """With logits of few tokens where they decide, and of all of them."""
    asked, run = set(), DeviceModel.run

    def record(self: DeviceModel, *arguments: Any, **keywords: Any) -> Any:
        asked.add(self.best)
        return run(self, *arguments, **keywords)

    def run_whole(self: DeviceModel, *arguments: Any, **keywords: Any) -> Any:
        self.best = None
        return run(self, *arguments, **keywords)

    texts = []
    with load(bundle, profile="cuda", threads=1) as engine:
        assert engine.exactness  # made before runs are recorded
        for instead in (record, run_whole):
            monkeypatch.setattr(DeviceModel, "run", instead)
            texts.append(engine.generate(IDS[:20], drafter="none", max_new_tokens=20, ignore_eos=True, **options).token_ids)
    assert asked == {best}
    assert texts[0] == texts[1]


@pytest.mark.parametrize("checkpoint", ["llama"], indirect=True)
def test_a_device_needs_the_package_onnxruntime(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_model, "import_onnxruntime", object)
    with pytest.raises(UsageError, match="--profile cuda: needs the package onnxruntime, not its C library alone"):
        open_variant(bundle, "cuda")


@pytest.mark.parametrize("checkpoint", ["llama"], indirect=True)
def test_a_device_without_room_or_of_no_number_is_said_so(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = read_manifest(bundle).target
    place = Placement([Choice("CPUExecutionProvider", (("device_id", "x"),))], 1, profile="cuda")
    with pytest.raises(UsageError, match="device_id 'x' of CPUExecutionProvider is not the number of a device"):
        open_model(bundle, spec, place, capacity=32)
    with load(bundle, threads=1, profile="cuda") as engine:
        model = engine._model("target")
        model.run([1, 2, 3], [2])
        monkeypatch.setattr(model, "_take", SimpleNamespace(io_binding=model._take.io_binding, run_with_iobinding=lambda _: raising()))
        with pytest.raises(OutOfMemory, match="cannot be copied on the device"):
            model.cache_rows(0, 2)
    monkeypatch.setattr(ort.OrtValue, "ortvalue_from_numpy", lambda *_: raising())
    with pytest.raises(OutOfMemory, match=f"no KV cache of {CAPACITY} tokens can be made on the device"):
        open_variant(bundle, "cuda")


def raising() -> None:
    raise RuntimeError("Failed to allocate memory for requested buffer of size 1")


def test_mixtures_have_no_cuda_profile(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint", "mixtral", num_local_experts=2, num_experts_per_tok=1)
    with pytest.raises(UnsupportedModelError, match="--profile cuda: the router of a mixture of experts needs 32-bit floats"):
        export(checkpoint, tmp_path / "bundle", profiles=("cuda",))
    assert not (tmp_path / "bundle").exists()


def test_numbers_that_16_bits_cannot_hold_are_refused(tmp_path: Path) -> None:
    """The export finds them on real text."""
    checkpoint = make_checkpoint(tmp_path / "checkpoint", "llama")
    scale_embedding(checkpoint, 1e6)
    with pytest.raises(ExportError, match="numbers that 16-bit floats cannot hold, as its cuda profile has them; leave --profile cuda out"):
        export(checkpoint, tmp_path / "bundle", profiles=("cuda",))


def test_all_profiles_share_the_bytes_of_the_weights(report: ExportReport, bundle: Path) -> None:
    graphs = sorted(bundle.glob("target.*.onnx"))
    assert {path.name.split(".")[1] for path in graphs} == {"cuda", "webgpu", "npu"}
    for path in graphs:
        assert len(places(path)) > 10 or path.name.endswith(("take.onnx", "put.onnx"))
        assert places(path) <= places(bundle / "target.onnx"), path.name
    assert [file.name for file in report.manifest.files if file.name.endswith(".bin")] == ["weights.bin"]


def test_all_profiles_share_quantised_weights(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint", "qwen3")
    alone = export(checkpoint, tmp_path / "alone", weights="int8")
    bundle = export(checkpoint, tmp_path / "bundle", weights="int8", profiles=PROFILES, npu_widths=WIDTHS)
    assert bundle.sizes["weights.bin"] == alone.sizes["weights.bin"]
    for name in ("target.onnx", "weights.bin"):  # what the cpu profile runs is not touched
        assert (bundle.output / name).read_bytes() == (alone.output / name).read_bytes(), name
    for path in bundle.output.glob("target.*.onnx"):
        if not path.name.endswith(("take.onnx", "put.onnx")):  # they have no weights
            assert places(path) == places(bundle.output / "target.onnx"), path.name
    for profile in ("webgpu", "cuda"):
        with load(bundle.output, profile=profile, threads=1) as engine:
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


@pytest.mark.parametrize("profile", ["webgpu", "cuda"])
def test_speculation_writes_the_plain_text(bundle: Path, profile: str) -> None:
    with load(bundle, profile=profile, threads=1) as engine:
        assert_plain_text(engine, (IDS[:5], IDS[:40]))


@pytest.mark.parametrize("checkpoint", ["llama"], indirect=True)
@pytest.mark.parametrize("profile", ["webgpu", "cuda"])
def test_models_of_a_pair_can_run_other_profiles(bundle: Path, profile: str) -> None:
    assert_a_draft_elsewhere_serves(bundle, IDS[:20], profile=f"draft={profile}")


@pytest.mark.parametrize("profile", ["cuda", "webgpu", "npu"])
def test_a_profile_that_the_bundle_does_not_have(pair: ExportReport, profile: str) -> None:
    wanted = rf"no {profile} profile of its target; export it with --profile {profile}, or run .*--profile target=cpu"
    with pytest.raises(BundleError, match=wanted):
        load(pair.output, profile=profile)


def test_a_profile_that_there_is_not(tmp_path: Path, llama: Path) -> None:
    with pytest.raises(UsageError, match="--profile: 'tpu' is unknown; choose one of cpu, cuda, webgpu, npu"):
        export(llama, tmp_path / "bundle", profiles=("tpu",))


@pytest.mark.parametrize(
    ("provider", "profile"), [("cpu", "cpu"), ("cuda", "cuda"), ("webgpu", "webgpu"), ("qnn", "npu"), ("coreml", "cpu")]
)
def test_a_provider_picks_its_profile(monkeypatch: pytest.MonkeyPatch, provider: str, profile: str) -> None:
    monkeypatch.setattr(providers, "is_present", lambda _: True)
    monkeypatch.setattr(providers, "_module", lambda _: None)
    assert Placements.of(provider).of_model("target").profile == profile


@pytest.fixture(params=["cuda", "webgpu"])
def place(request: pytest.FixtureRequest) -> Placement:
    """A provider with a profile of its own, where this machine has it."""
    name: str = request.param
    if name not in providers.present():
        pytest.skip(f"{name} is not installed here: {providers.provider(name).get}")
    try:
        return Placements.of(name, threads=1, strict=name == "webgpu").of_model("target")
    except UsageError as error:
        pytest.skip(str(error))


def test_a_provider_computes_what_torch_does(checkpoint: Path, bundle: Path, place: Placement) -> None:
    """A prompt, a draft that is rejected, a tree of which a branch is kept, one by one. On WebGPU strict: every node is there."""
    model, reference = open_variant(bundle, place.profile, place), Reference(checkpoint)
    limit = HALF * reference(IDS[:60]).std()
    for name, difference in (sequence_distances(model, reference) | tree_distances(model, reference)).items():
        assert difference < limit, name


def test_rows_move_in_the_device_s_own_memory(bundle: Path, place: Placement) -> None:
    model, other = (open_variant(bundle, place.profile, place) for _ in range(2))
    assert isinstance(model, DeviceModel)
    assert {value.device_name() for value in model._values} == {providers.provider(place.providers[0].name).memory}
    model.run(IDS[:20], [0])
    model.run([1, 2, 3, 4], range(4), (-1, 0, 0, 2))
    model.keep_path(20, (0, 2, 3))
    assert other.restore_rows(model.tokens, model.cache_rows(0, model.length))
    wanted = model.run(IDS[30:33], range(3)).copy()
    np.testing.assert_array_equal(other.run(IDS[30:33], range(3)), wanted)
    other.keep(23)
    other.best = 2
    np.testing.assert_array_equal(other.run(IDS[30:33], range(3)).argmax(1), wanted[:, :VOCAB].argmax(1))


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_a_provider_multiplies_quantised_weights(tmp_path: Path, llama: Path, place: Placement, weights: str) -> None:
    bundle = export(llama, tmp_path / "bundle", weights=weights, max_kl=9.0, profiles=(place.profile,)).output
    here, there = open_variant(bundle, place.profile), open_variant(bundle, place.profile, place)
    for tokens, parents in ((IDS[:30], None), ([1, 2, 3, 4], (-1, 0, 0, 2))):
        wanted, found = (model.run(tokens, range(len(tokens)), parents).copy() for model in (here, there))
        rms = float(np.sqrt(np.square(found - wanted).mean()))
        assert rms < 3e-2 * wanted.std(), "the CPU rounds activations to 8 bits, which others do not"


def test_speculation_on_a_provider_writes_its_plain_text(bundle: Path, place: Placement) -> None:
    """Whole pairs on it, and pairs of it and the CPU."""
    name = providers.provider(place.providers[0].name).short
    for placed in (name, f"target={name},draft=cpu", f"target=cpu,draft={name}"):
        with load(bundle, providers=placed, threads=1) as engine:
            plain = engine.generate(IDS[:20], drafter="none", max_new_tokens=20, ignore_eos=True)
            for drafter in ("ngram", "draft", "tree"):
                found = engine.generate(IDS[:20], drafter=drafter, draft_length=3, max_new_tokens=20, ignore_eos=True)
                assert found.token_ids == plain.token_ids, (placed, drafter)
