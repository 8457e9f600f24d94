"""Checkpoints that cannot be exported: one line that says what, where and what to do, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import edgespec
from edgespec.errors import CapacityError, CheckpointError, EdgespecError, UnsupportedModelError, UsageError
from edgespec.export.trace.windows import check_windows
from edgespec.manifest import KvLayer
from edgespec.runtime.models.model import Model
from edgespec.runtime.providers.session import DEFAULT_PROVIDERS
from tests.export.architectures import REFUSED
from tests.export.conftest import export
from tests.helpers.checkpoints import CAPACITY, make_checkpoint, make_config, make_tokenizer


@pytest.fixture
def broken(llama: Path, tmp_path: Path) -> Path:
    """A copy of a good checkpoint, for the test to break."""
    return Path(shutil.copytree(llama, tmp_path / "broken"))


def refused(target: Path | str, tmp_path: Path, **options: object) -> str:
    """The message of a refused export, which must be one line and leave nothing."""
    with pytest.raises(EdgespecError) as caught:
        export(Path(target), tmp_path / "bundle", **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "bundle").exists()
    assert not list(tmp_path.glob(".bundle*"))
    return str(caught.value)


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_paths_that_are_not_there(tmp_path: Path) -> None:
    assert "no such" in refused(tmp_path / "nowhere", tmp_path)
    assert "no such file" in refused(tmp_path / "nowhere.gguf", tmp_path)
    (tmp_path / "empty").mkdir()
    assert "config.json" in refused(tmp_path / "empty", tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    assert "is a file" in refused(tmp_path / "notes.txt", tmp_path)


def test_the_hub_out_of_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = refused("nobody/nothing-at-all", tmp_path)
    assert "Hub cannot be reached" in message
    assert ".gguf" in message


def test_damaged_weights(broken: Path, tmp_path: Path) -> None:
    weights = broken / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    assert "not a whole safetensors file" in refused(broken, tmp_path)
    weights.unlink()
    assert "model.safetensors" in refused(broken, tmp_path)


def test_tensors_missing_or_not_finite_are_named(broken: Path, tmp_path: Path) -> None:
    path, name = broken / "model.safetensors", "model.layers.1.mlp.up_proj.weight"
    tensors = load_file(path)
    save_file({key: tensor for key, tensor in tensors.items() if key != name}, path, metadata={"format": "pt"})
    assert name in refused(broken, tmp_path)
    tensors[name][0, 0] = torch.nan
    save_file(tensors, path, metadata={"format": "pt"})
    message = refused(broken, tmp_path)
    assert name in message
    assert "not finite" in message


def test_a_shard_missing(broken: Path, tmp_path: Path) -> None:
    names = load_file(broken / "model.safetensors")
    index = {"weight_map": dict.fromkeys(names, "model-00001-of-00002.safetensors")}
    (broken / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model-00001-of-00002.safetensors: missing" in refused(broken, tmp_path)


def test_files_that_are_no_gguf(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for content in (b"", b"GGUF", b"GGUF" + bytes(range(256)) * 4, b"PK\x03\x04" * 100):
        path.write_bytes(content)
        assert "not a whole GGUF file" in refused(path, tmp_path)


def test_models_that_are_no_decoders(broken: Path, tmp_path: Path) -> None:
    edit_config(broken, model_type="t5", architectures=["T5ForConditionalGeneration"])
    assert "only decoders" in refused(broken, tmp_path)
    edit_config(broken, model_type="vit", architectures=["ViTModel"])
    assert "vit" in refused(broken, tmp_path)
    edit_config(broken, model_type="no_such_model", architectures=["NoSuchModel"])
    assert "no_such_model" in refused(broken, tmp_path)


@pytest.mark.parametrize(("architecture", "changes", "named", "_why"), REFUSED)
def test_layers_that_cannot_be_exported_are_named(
    architecture: str, changes: dict[str, object], named: str, _why: str, tmp_path: Path
) -> None:
    config = make_config(architecture, num_hidden_layers=2, **changes)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "checkpoint")
    make_tokenizer().save_pretrained(tmp_path / "checkpoint")
    with pytest.raises(UnsupportedModelError, match=named):
        export(tmp_path / "checkpoint", tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_a_tokenizer_whose_text_the_model_cannot_read(tmp_path: Path) -> None:
    ends = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
    checkpoint = make_checkpoint(tmp_path / "checkpoint", "llama", vocab_size=110, **ends)  # "z" is byte 122
    message = refused(checkpoint, tmp_path)
    assert "259 tokens" in message
    assert "110" in message


def test_a_few_tokens_beyond_the_vocabulary_are_harmless(tmp_path: Path) -> None:
    """As in Gemma-3, whose text models have the tokenizer of the multimodal ones."""
    checkpoint = make_checkpoint(tmp_path / "checkpoint", "llama", vocab_size=258)
    report = export(checkpoint, tmp_path / "bundle")
    with edgespec.load(report.output, threads=1) as engine:
        assert len(engine.generate("hello", max_new_tokens=8, ignore_eos=True).token_ids) == 8


def test_tensors_without_a_place_are_named(broken: Path, tmp_path: Path) -> None:
    """Scales of a form that cannot be read, or a layer too many: left out in silence they would make another model."""
    path = broken / "model.safetensors"
    tensors = load_file(path)
    for name in ("model.layers.0.mlp.up_proj.weight_scale", "model.layers.7.mlp.up_proj.weight"):
        save_file({**tensors, name: torch.ones(4)}, path, metadata={"format": "pt"})
        assert name in refused(broken, tmp_path)
    save_file({**tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}, path, metadata={"format": "pt"})
    export(broken, tmp_path / "bundle")


def test_types_that_cannot_be_read_and_shapes_that_do_not_fit_are_named(broken: Path, tmp_path: Path) -> None:
    path, name = broken / "model.safetensors", "model.layers.1.mlp.up_proj.weight"
    tensors = load_file(path)
    save_file({**tensors, name: tensors[name].to(torch.float8_e4m3fn)}, path, metadata={"format": "pt"})
    message = refused(broken, tmp_path)
    assert name in message
    assert "float8" in message
    save_file({**tensors, name: tensors[name][:5].contiguous()}, path, metadata={"format": "pt"})
    message = refused(broken, tmp_path)
    assert name in message
    assert "shape" in message


def test_a_head_stored_apart_is_kept_apart_whatever_the_configuration_says(broken: Path, tmp_path: Path) -> None:
    path = broken / "model.safetensors"
    tensors = load_file(path)
    assert "lm_head.weight" not in tensors
    head = torch.randn_like(tensors["model.embed_tokens.weight"])
    save_file({**tensors, "lm_head.weight": head}, path, metadata={"format": "pt"})
    report = export(broken, tmp_path / "bundle")
    spec = report.manifest.target
    model = Model(report.output / spec.graph, spec, capacity=32, threads=1, providers=DEFAULT_PROVIDERS)
    with torch.no_grad():
        wanted = AutoModelForCausalLM.from_pretrained(broken, dtype=torch.float32)(torch.tensor([[5, 6, 7]])).logits[0].numpy()
    assert abs(model.run([5, 6, 7], range(3)) - wanted).max() < 1e-4


def test_a_tokenizer_that_is_missing(broken: Path, tmp_path: Path) -> None:
    for path in broken.glob("tokenizer*"):
        path.unlink()
    assert "tokenizer" in refused(broken, tmp_path)


def test_options_out_of_range(llama: Path, tmp_path: Path) -> None:
    for options, error, named in (
        ({"context": CAPACITY + 1}, CapacityError, "96"),
        ({"draft": "layers:3"}, UsageError, "1 to 2"),
        ({"draft": "layers:0"}, UsageError, "layers:4"),
        ({"draft": "layers:many"}, UsageError, "layers:4"),
        ({"draft": ("layers:1", "layers:1")}, UsageError, "layers:1 is given twice"),
        ({"weights": "int3"}, UsageError, "int3"),
        ({"block_size": 24}, UsageError, "24"),
        ({"weights": "mixed", "symmetric": True}, UsageError, "--symmetric"),
        ({"weights": "int4", "draft_weights": "fp32", "symmetric": True}, UsageError, "--symmetric"),
        ({"max_width": 1}, UsageError, "max-width"),
        ({"max_kl": float("nan")}, UsageError, "max-kl"),
        ({"draft": str(tmp_path / "nowhere")}, CheckpointError, "nowhere"),
    ):
        with pytest.raises(error, match=named):
            export(llama, tmp_path / "bundle", **options)
        assert not (tmp_path / "bundle").exists()


def test_a_window_that_only_the_mask_has_is_refused_beyond_it(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint", "phimoe", sliding_window=16, num_local_experts=2, num_hidden_layers=1)
    message = refused(checkpoint, tmp_path)
    assert "layer 0" in message
    assert "--context 16" in message


@pytest.mark.parametrize(
    ("kind", "window", "refuses"), [("sliding_attention", None, True), ("sliding_attention", 8, False), ("full_attention", None, False)]
)
def test_windows_are_compared_layer_by_layer(kind: str, window: int | None, refuses: bool) -> None:
    config = SimpleNamespace(model_type="x", sliding_window=8, layer_types=["full_attention", kind])
    layers = [KvLayer(1, 4, 4), KvLayer(1, 4, 4, window)]
    check_windows(config, layers, capacity=8)  # within the window nothing is hidden
    with pytest.raises(UnsupportedModelError, match="layer 1") if refuses else contextlib.nullcontext():
        check_windows(config, layers, capacity=9)
