"""Draft heads in the export: every public layout against an independent forward, and files that are not what they should be."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from edgespec import runtime
from edgespec.cli.inspect import describe
from edgespec.errors import CheckpointError, EdgespecError, ExportError, UnsupportedModelError
from edgespec.export import ExportReport
from edgespec.export.heads import Head, TargetShape, proof
from edgespec.export.heads.eagle import open_eagle
from edgespec.export.heads.medusa import accuracy_of, open_medusa
from edgespec.manifest import ModelSpec, Tap
from edgespec.runtime.models.features import columns
from edgespec.runtime.models.model import Model
from edgespec.runtime.models.row_heads import RowHeads
from edgespec.runtime.providers.session import DEFAULT_PROVIDERS
from tests.export.architectures import CASES
from tests.export.conftest import export
from tests.helpers.checkpoints import CAPACITY, auto_class, make_checkpoint
from tests.helpers.heads import (
    LAYERS,
    Eagle,
    TargetMatrices,
    V,
    make_eagle,
    medusa_logits,
    medusa_tensors,
    target_shape,
    write_alone,
    write_medusa,
)

IDS = np.random.default_rng(0).integers(0, 256, 40).tolist()
EAGLES = {
    "eagle-1": make_eagle("1"),
    "eagle-1 with biases": make_eagle("1", bias=True),
    "eagle-3": make_eagle("3"),
    "eagle-3, all tokens": make_eagle("3", reduced=False),
    "speculators": make_eagle("speculators"),
    "speculators, norms": make_eagle("speculators", norm_before_residual=True, norm_before_fc=True, norm_output=True),
    "speculators, fc_norm": make_eagle("speculators", fc_norm=True, norm_before_residual=True),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("target") / "checkpoint", num_hidden_layers=LAYERS, tie_word_embeddings=False)


@dataclasses.dataclass(frozen=True)
class Original:
    """The target in transformers: hidden states entering each layer and behind the norm, for ``IDS``."""

    matrices: TargetMatrices
    hidden: tuple[torch.Tensor, ...]

    @classmethod
    def load(cls, checkpoint: Path) -> Original:
        model = AutoModelForCausalLM.from_pretrained(checkpoint, attn_implementation="eager", dtype=torch.float32).eval()
        with torch.no_grad():
            found = model(torch.tensor([IDS]), output_hidden_states=True).hidden_states
        matrices = TargetMatrices(model.get_input_embeddings().weight.detach(), model.get_output_embeddings().weight.detach())
        return cls(matrices, tuple(states[0] for states in found))

    def taps(self, layers: tuple[int, ...]) -> torch.Tensor:
        return torch.cat([self.hidden[layer] for layer in layers], -1)


@pytest.fixture(scope="module")
def original(target: Path) -> Original:
    return Original.load(target)


@pytest.fixture(scope="module")
def shape(target: Path) -> TargetShape:
    return target_shape(target)


def load(folder: Path, spec: ModelSpec) -> Model:
    return Model(folder / spec.graph, spec, capacity=CAPACITY, threads=1, providers=DEFAULT_PROVIDERS)


@pytest.fixture(scope="module")
def report(target: Path, original: Original, tmp_path_factory: pytest.TempPathFactory) -> ExportReport:
    """One whole export, with an EAGLE-1 head that repeats the target's matrices."""
    folder = tmp_path_factory.mktemp("whole")
    repeated = {"embed_tokens.weight": original.matrices.embedding, "lm_head.weight": original.matrices.head}
    eagle = make_eagle("1")
    eagle = dataclasses.replace(eagle, tensors=eagle.tensors | repeated)
    heads = {"medusa": str(write_medusa(folder / "medusa", medusa_tensors(1))), "eagle": str(eagle.write(folder / "eagle"))}
    return export(target, folder / "bundle", weights="int8", **heads)


def test_the_target_gives_what_transformers_gives(target: Path, original: Original, tmp_path: Path) -> None:
    heads = {"medusa": write_medusa(tmp_path / "medusa", medusa_tensors()), "eagle": make_eagle("3").write(tmp_path / "eagle")}
    manifest = export(target, tmp_path / "bundle", **{name: str(head) for name, head in heads.items()}).manifest
    names = ("last", "layer.2", "layer.4", "layer.5")
    assert manifest.target.taps == tuple(Tap(name, 64) for name in names)
    assert manifest.target.hidden_states == 4 * 64
    model = load(tmp_path / "bundle", manifest.target)
    model.run(IDS[:25], [24])
    model.run(IDS[25:], [0])
    wanted = original.taps((LAYERS, 2, 4, 5))
    assert wanted.std() > 0.1
    np.testing.assert_allclose(model.features, wanted, atol=1e-4)
    assert columns(manifest.target, ("layer.2", "layer.4", "layer.5")) == slice(64, 256)
    assert list(np.arange(256)[columns(manifest.target, ("layer.4", "last"))][[0, 63, 64]]) == [128, 191, 0]
    assert [(drafter.kind, drafter.model) for drafter in manifest.drafters[1:]] == [("medusa", "medusa"), ("eagle", "eagle")]
    for name in ("medusa", "eagle"):
        assert manifest.models[name].accuracy is not None
        assert manifest.models[name].source.checkpoint == str(heads[name])


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["gpt2", "gemma3_text", "gemma2", "cohere2", "phi", "opt", "granite", "mixtral"])
def test_taps_of_other_architectures(architecture: str, tmp_path: Path) -> None:
    """What enters a layer, and what is behind the last norm, whatever the model does around it."""
    case = next(case for case in CASES if case.architecture == architecture)
    checkpoint = make_checkpoint(tmp_path / "checkpoint", architecture, **case.settings)
    model = auto_class(architecture).from_pretrained(checkpoint, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        hidden = model(torch.tensor([IDS]), output_hidden_states=True).hidden_states
    width, rows = hidden[1].shape[-1], model.get_output_embeddings().weight.shape[0]
    shapes = {"0.0.linear.weight": (width, width), "0.0.linear.bias": (width,), "0.1.weight": (rows, width)}
    tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
    spec = export(checkpoint, tmp_path / "bundle", medusa=str(write_medusa(tmp_path / "head", tensors))).manifest.target
    found = load(tmp_path / "bundle", spec)
    found.run(IDS, [0])
    assert hidden[-1].std() > 0.1
    np.testing.assert_allclose(found.features, hidden[-1][0], atol=2e-4)


def test_without_heads_the_graph_stays_as_it_is(pair: ExportReport) -> None:
    spec = pair.manifest.target
    assert (spec.taps, spec.hidden_states) == (None, None)
    graph = onnx.load(str(pair.output / spec.graph), load_external_data=False).graph
    assert "hidden_states" not in [output.name for output in graph.output]


@pytest.mark.parametrize(("layers", "form"), [(1, "pt"), (2, "safetensors")])
def test_medusa_equals_its_formula(layers: int, form: str, shape: TargetShape, original: Original, tmp_path: Path) -> None:
    tensors = medusa_tensors(heads=5, layers=layers)
    spec = write_alone(open_medusa(str(write_medusa(tmp_path / "heads", tensors, form)), shape), tmp_path, ("last",))
    heads = RowHeads(tmp_path / spec.graph, spec, threads=1, providers=DEFAULT_PROVIDERS)
    assert (heads.heads, spec.layers, spec.reads, spec.features) == (5, (), ("last",), 64)
    features = original.hidden[LAYERS]
    wanted = medusa_logits(tensors, features)[:, :, :259]  # what the tokenizer has
    ranked = torch.from_numpy(heads.run(features.numpy()))
    found = wanted.gather(-1, ranked)
    np.testing.assert_allclose(found, wanted.topk(heads.ranks).values, atol=1e-4)


@pytest.mark.parametrize("name", EAGLES)
def test_eagle_equals_its_formula(name: str, shape: TargetShape, original: Original, tmp_path: Path) -> None:
    """Over prefill in two passes, then rows with the head's own features, a tree of them, and on from the rollback."""
    eagle = EAGLES[name]
    head = open_eagle(str(eagle.write(tmp_path / "head", "bin" if name == "eagle-1" else "safetensors")), shape)
    spec = write_alone(head, tmp_path, ("layer.2", "layer.4", "layer.5", "last"))
    model = load(tmp_path, spec)
    given = original.taps((LAYERS,) if eagle.layout == "1" else (2, 4, 5))[:-1]
    tokens, count = IDS[1:], 30
    wanted, own = eagle.forward(original.matrices, tokens[:count], given[:count], given[:0, :64])
    found = [
        model.run(tokens[part], range(len(tokens[part])), features=given[part].numpy()).copy() for part in (slice(0, 18), slice(18, count))
    ]
    assert wanted.std() > 0.1
    np.testing.assert_allclose(np.concatenate(found), wanted, atol=2e-4)
    np.testing.assert_allclose(model.features, own, atol=2e-4)

    # Two siblings that take the last row's own feature, and a child of the second.
    rows = model.run([7, 8], range(2), [-1, -1], features=model.features[[-1, -1]]).copy()
    child = model.run([9], [0], [-1, -1, 1], trunk=count, features=model.features[[-1]]).copy()
    path_features = own[-1:]
    for drafted, row in (([7], rows[0]), ([8], rows[1]), ([8, 9], child[0])):
        path_features = own[-1:]
        for length in range(1, len(drafted) + 1):
            text = [*tokens[:count], *drafted[:length]]
            wanted, grown = eagle.forward(original.matrices, text, given[:count], path_features)
            path_features = torch.cat([own[-1:], grown[count:]])
        np.testing.assert_allclose(row, wanted[-1], atol=2e-4)

    model.keep(count)
    rest = model.run(tokens[count:], range(len(tokens) - count), features=given[count:].numpy())
    np.testing.assert_allclose(rest, eagle.forward(original.matrices, tokens, given, given[:0, :64])[0][count:], atol=2e-4)


def test_quantised_heads_are_near_and_share_the_bytes_of_the_target(report: ExportReport) -> None:
    places: dict[str, set[str]] = {}
    for name in ("target", "eagle"):
        graph = onnx.load(str(report.output / f"{name}.onnx"), load_external_data=False).graph
        places[name] = {entry.value for tensor in graph.initializer for entry in tensor.external_data if entry.key == "offset"}
    # Data, scales and zero points of the embedding and of the head; the final norm of the target is not the head's.
    assert len(places["target"] & places["eagle"]) == 6
    assert len(places["eagle"]) < len(places["target"])
    spec = report.manifest.models["eagle"]
    assert spec.fidelity is not None
    assert spec.fidelity.kl < 0.02
    assert spec.fidelity.graph_rms is not None
    assert spec.fidelity.graph_rms < 1e-4, "on the weights as they are stored, in float arithmetic"
    assert spec.quantisation.bits == report.manifest.models["medusa"].quantisation.bits == 8


def test_accuracy_is_measured_on_text_of_the_target() -> None:
    samples = [proof.Sample([9, 9, 1, 2, 3, 4, 5], np.zeros((7, 1), np.float32), written=2)]
    # Of rows 1 to 4 head 0 ranks first what stands two places on, in rows 1 and 2 only.
    ranked = np.zeros((7, 1, 2), np.int64)
    ranked[1:3, 0, 0] = [2, 3]
    ranked[3, 0, 1] = 4
    ((first, second),) = accuracy_of(samples, [ranked])
    assert (first, second) == (round((2 + 0.25) / 5, 4), round((1 + 0.125) / 5, 4))


def _drop(*names: str) -> Callable[[Eagle], Eagle]:
    return lambda eagle: dataclasses.replace(eagle, tensors={name: value for name, value in eagle.tensors.items() if name not in names})


def _put(**changes: Any) -> Callable[[Eagle], Eagle]:
    def change(eagle: Eagle) -> Eagle:
        return dataclasses.replace(eagle, tensors=eagle.tensors | {name.replace("__", "."): make(eagle) for name, make in changes.items()})

    return change


def _set(**config: Any) -> Callable[[Eagle], Eagle]:
    return lambda eagle: dataclasses.replace(eagle, config=eagle.config | config)


@pytest.mark.parametrize(
    ("layout", "change", "message"),
    [
        ("3", _put(fc__weight=lambda _: torch.zeros(64, 3 * 48)), "fc reads 144 columns where a target of hidden size 64 asks for 192"),
        ("1", _put(fc__weight=lambda _: torch.zeros(64, 96)), "fc reads 96 columns"),
        ("1", _set(hidden_size=32, head_dim=8), "hidden size 32 and the target 64"),
        ("3", _drop("d2t"), "scores 120 of the target's 288 tokens and has no map d2t"),
        ("3", _put(d2t=lambda eagle: eagle.tensors["d2t"] + 200), "d2t leads to id .* the target has 0 to 287"),
        ("3", _put(d2t=lambda _: -torch.arange(120)), "d2t leads to one id twice"),
        ("3", _put(d2t=lambda eagle: eagle.tensors["d2t"][:5]), r"d2t has shape \[5\]"),
        ("3", _put(t2d=lambda eagle: ~eagle.tensors["t2d"]), "d2t and t2d contradict"),
        ("3", _drop("norm.weight"), "has no tensor norm.weight"),
        ("3", _put(layers__0__self_attn__q_proj__weight=lambda _: torch.zeros(64, 64)), r"q_proj.weight has shape \[64, 64\]"),
        ("3", _put(surprise=lambda _: torch.zeros(3)), "has a tensor surprise that an EAGLE head has no place for"),
        ("1", _put(embed_tokens__weight=lambda _: torch.zeros(300, 64)), r"embed_tokens.weight has shape \[300, 64\]"),
        ("1", _drop("fc.weight"), "not an EAGLE head"),
        ("3", _set(eagle_aux_hidden_state_layer_ids=[2, 20, 29]), r"reads what enters layers \[2, 20, 29\]"),
        ("speculators", _set(speculators_model_type="mlp"), "type 'mlp'"),
        ("3", _set(num_attention_heads="many"), "configuration cannot be used"),
    ],
)  # fmt: skip
def test_eagle_heads_that_do_not_fit(
    layout: str, change: Callable[[Eagle], Eagle], message: str, shape: TargetShape, tmp_path: Path
) -> None:
    head = change(make_eagle(layout)).write(tmp_path / "head")
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
        open_eagle(str(head), shape)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (medusa_tensors(1) | {"0.1.weight": torch.zeros(300, 64)}, r"0.1.weight has shape \[300, 64\].*another target's"),
        (medusa_tensors(1) | {"0.0.linear.weight": torch.zeros(32, 32)}, r"shape \[32, 32\]"),
        (medusa_tensors(1) | {"lm_head.weight": torch.zeros(2)}, "has a tensor lm_head.weight that Medusa heads have no place for"),
        ({name: value for name, value in medusa_tensors(3).items() if not name.startswith("1.")}, "not numbered from 0"),
        ({name: value for name, value in medusa_tensors(2).items() if name != "1.0.linear.bias"}, "has no tensor 1.0.linear.bias"),
        ({}, "not numbered from 0"),
    ],
)
def test_medusa_heads_that_do_not_fit(tensors: dict[str, torch.Tensor], message: str, shape: TargetShape, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        open_medusa(str(write_medusa(tmp_path / "heads", tensors)), shape)


def test_medusa_heads_inside_a_model_are_found(shape: TargetShape, tmp_path: Path) -> None:
    tensors = {f"medusa_head.{name}": tensor for name, tensor in medusa_tensors(2).items()} | {"model.norm.weight": torch.ones(64)}
    (tmp_path / "heads").mkdir()
    save_file(tensors, tmp_path / "heads" / "model.safetensors")
    assert open_medusa(str(tmp_path / "heads"), shape).count == 2


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_heads_are_refused_or_whole(data: st.DataObject, shape: TargetShape, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever is done to files of a head, it opens or there is an error of ours."""
    folder = tmp_path_factory.mktemp("damaged")
    if data.draw(st.booleans()):
        head, opener = write_medusa(folder / "head", medusa_tensors(1), data.draw(st.sampled_from(["pt", "safetensors"]))), open_medusa
    else:
        head, opener = make_eagle(data.draw(st.sampled_from(["1", "3", "speculators"]))).write(folder / "head"), open_eagle
    path = data.draw(st.sampled_from(sorted(head.iterdir())))
    content = bytearray(path.read_bytes())
    start = data.draw(st.integers(0, min(len(content) - 1, 3000)))
    noise = data.draw(st.binary(min_size=1, max_size=8))
    content[start : start + len(noise)] = noise
    path.write_bytes(content[: data.draw(st.sampled_from([len(content), len(content) // 2]))])
    with contextlib.suppress(EdgespecError):
        opener(str(head), shape)


def test_a_head_that_does_not_fit_is_refused_before_work(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def traced(*_: Any) -> None:
        raise AssertionError("the target was traced")

    monkeypatch.setattr("edgespec.export.pipeline.trace", traced)
    with pytest.raises(CheckpointError, match="has no map d2t"):
        export(target, tmp_path / "bundle", eagle=str(_drop("d2t")(make_eagle("3")).write(tmp_path / "head")))
    assert not (tmp_path / "bundle").exists()


def test_a_target_of_fixed_shapes_gives_its_hidden_states_to_heads(target: Path, tmp_path: Path) -> None:
    heads = {"medusa": str(write_medusa(tmp_path / "medusa", medusa_tensors())), "eagle": str(make_eagle("3").write(tmp_path / "eagle"))}
    report = export(target, tmp_path / "bundle", profiles=("npu",), npu_widths=(1, 5, 16), **heads)
    usual = load(report.output, report.manifest.target)
    with runtime.load(report.output, profile="npu", threads=1) as engine:
        static = engine._model("target")
        for model in (usual, static):
            model.run(IDS[:16], [0])
            model.run([7, IDS[16], IDS[17]], range(3), (-1, -1, 1))
            model.keep_path(16, (1, 2))
        assert usual.features.std() > 0.1
        np.testing.assert_allclose(static.features, usual.features, atol=1e-4)
        static.keep(0)
        plain = engine.generate(IDS[:12], drafter="none", max_new_tokens=20, ignore_eos=True)
        for drafter in ("medusa", "eagle"):
            found = engine.generate(IDS[:12], drafter=drafter, draft_length=2, max_new_tokens=20, ignore_eos=True)
            assert found.token_ids == plain.token_ids, drafter
            assert found.stats.drafted > 0, drafter


def test_inspect_shows_heads(report: ExportReport) -> None:
    text = describe(report.output, report.manifest)
    assert "ngram, medusa (model medusa), eagle (model eagle)" in text
    assert re.search(r"gives to heads +last \(64\)\n", text)
    assert len(re.findall(r"reads +last\n", text)) == 2
    assert re.search(r"first step +also in the target's pass \(target.eagle.onnx\)", text)
    assert re.search(r"first token right +\d+% \(on text that the target wrote", text)


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("evil",)


def test_pickled_code_is_not_run(shape: TargetShape, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    heads = write_medusa(tmp_path / "heads", medusa_tensors())
    torch.save({"0.0.linear.weight": Evil()}, heads / "medusa_lm_head.pt")
    with pytest.raises(CheckpointError, match="could run code"):
        open_medusa(str(heads), shape)
    assert not (tmp_path / "evil").exists()


def test_files_that_are_none(shape: TargetShape, tmp_path: Path) -> None:
    def refused(message: str, folder: Path, opener: Callable[[str, TargetShape], Head] = open_medusa) -> None:
        with pytest.raises(CheckpointError, match=message):
            opener(str(folder), shape)

    refused("no such folder", tmp_path / "nowhere")
    refused("has none of medusa_lm_head.safetensors", tmp_path)
    heads = write_medusa(tmp_path / "heads", medusa_tensors())
    refused("is a file; give the folder", heads / "medusa_lm_head.pt")
    (heads / "medusa_lm_head.pt").write_bytes((heads / "medusa_lm_head.pt").read_bytes()[:2000])
    refused("not a whole file of tensors", heads)
    torch.save([1, 2], heads / "medusa_lm_head.pt")
    refused("not a mapping from names to tensors", heads)
    (heads / "config.json").write_text("[1]")
    torch.save(medusa_tensors(), heads / "medusa_lm_head.pt")
    refused("not a configuration", heads)
    eagle = make_eagle("3").write(tmp_path / "eagle")
    (eagle / "config.json").unlink()
    refused("has no config.json", eagle, open_eagle)


def test_numbers_that_are_none_are_refused(shape: TargetShape, tmp_path: Path) -> None:
    head = _put(fc__weight=lambda _: torch.full((64, 192), torch.nan))(make_eagle("3")).write(tmp_path / "head")
    with pytest.raises(CheckpointError, match=r"fc.weight has values that are not finite"):
        write_alone(open_eagle(str(head), shape), tmp_path, ("layer.2", "layer.4", "layer.5"))


def test_a_target_with_few_layers_has_no_place_for_eagle_3(shape: TargetShape, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"reads what enters layers \[2, 1, 0\]"):
        open_eagle(str(make_eagle("3").write(tmp_path / "head")), dataclasses.replace(shape, layers=3))


def test_a_damaged_head_is_found_out() -> None:
    """What the export compares: tokens of the exported heads with those of the original."""
    found = np.arange(60).reshape(20, 1, 3)
    proof.require_same_tokens("medusa", found, found[:, :, 1], None)
    with pytest.raises(ExportError, match="holds another token likeliest than the original in 50% of the rows"):
        proof.require_same_tokens("medusa", found, np.where(np.arange(20)[:, None] % 2, found[:, :, 1], -1), None)


def test_a_map_is_written_for_a_reduced_vocabulary(shape: TargetShape, tmp_path: Path) -> None:
    eagle = make_eagle("3")
    spec = write_alone(open_eagle(str(eagle.write(tmp_path / "head")), shape), tmp_path, ("layer.2", "layer.4", "layer.5"))
    assert spec.token_ids is not None
    ids = np.fromfile(tmp_path / spec.token_ids, "<i4")
    assert ids.tolist() == eagle.target_ids.tolist()
    assert spec.vocab_size == len(ids) < V
