"""GGUF files, written by llama.cpp's own library, read one tensor at a time and equal to what transformers loads as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GgufConfig, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from edgespec.errors import CheckpointError
from edgespec.export.checkpoint import open_checkpoint
from edgespec.export.checkpoint.rope_factors import rope_parameters
from tests.export.conftest import export
from tests.helpers.bundles import byte_tokenizer
from tests.helpers.checkpoints import opened

HIDDEN, HEADS, KV_HEADS, INNER, LAYERS, CONTEXT, VOCAB = 64, 4, 2, 96, 2, 64, 288


def write_gguf(
    path: Path,
    kind: gguf.GGMLQuantizationType,
    architecture: str = "llama",
    extra: Mapping[str, np.ndarray] | None = None,
    end_of_turn: int | None = None,
    hidden: int = HIDDEN,
    inner: int = INNER,
) -> Path:
    """A random model with the byte-level tokenizer of the tests."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    add_tokenizer(writer)
    if end_of_turn is not None:
        writer.add_eot_token_id(end_of_turn)
    writer.add_license("mit")
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    rng = np.random.default_rng(0)
    kv = KV_HEADS * hidden // HEADS
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (VOCAB, hidden), "output_norm": (hidden,)}
    for layer in range(LAYERS):
        parts = {"attn_q": (hidden, hidden), "attn_k": (kv, hidden), "attn_v": (kv, hidden), "attn_output": (hidden, hidden)}
        parts |= {"ffn_gate": (inner, hidden), "ffn_up": (inner, hidden), "ffn_down": (hidden, inner)}
        for name, shape in {**parts, "attn_norm": (hidden,), "ffn_norm": (hidden,)}.items():
            shapes[f"blk.{layer}.{name}"] = shape
    add_weights(writer, shapes, kind, rng)
    return written(writer, path)


def add_weights(
    writer: gguf.GGUFWriter, shapes: Mapping[str, tuple[int, ...]], kind: gguf.GGMLQuantizationType, rng: np.random.Generator
) -> None:
    """Random matrices of a type, and norms near 1."""
    for name, shape in shapes.items():
        values = (rng.normal(size=shape) * 0.1).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", values + 1)
        else:
            writer.add_tensor(f"{name}.weight", encoded(values, kind), raw_dtype=kind)


def written(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tokenizer(writer: gguf.GGUFWriter) -> dict[str, int]:
    """The byte-level tokenizer of the tests; its vocabulary."""
    vocabulary = byte_tokenizer().get_vocab()
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    tokens.append(tokens[0] + tokens[1])  # a GGUF has at least one merge
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<") and len(token) > 1 else 1 for token in tokens])
    writer.add_token_merges([f"{tokens[0]} {tokens[1]}"])
    writer.add_eos_token_id(vocabulary["<eos>"])
    writer.add_bos_token_id(vocabulary["<eos>"])
    return vocabulary


def encoded(values: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """As the library writes it; of Q4_K and Q5_K, which it only reads, random blocks: any bytes are valid behind two small scales."""
    if kind not in (gguf.GGMLQuantizationType.Q4_K, gguf.GGMLQuantizationType.Q5_K):
        return gguf.quantize(values, kind)
    weights, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(values.size).integers(0, 256, (len(values), values.shape[1] // weights, size), dtype=np.uint8)
    blocks[:, :, :4] = np.array([2e-4, 2e-4], np.float16).view(np.uint8)
    return blocks.reshape(len(values), -1)


def write_gpt2(path: Path, kind: gguf.GGMLQuantizationType) -> Path:
    """A random GPT-2, whose matrices transformers has the other way round. It takes the size of the vocabulary from the tokens, and does
    not read how many positions there are."""
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(4 * HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_eps(1e-5)
    rows = 1 + len(add_tokenizer(writer))
    rng = np.random.default_rng(0)
    writer.add_tensor("position_embd.weight", (rng.normal(size=(1024, HIDDEN)) * 0.1).astype(np.float32))
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (rows, HIDDEN), "output_norm": (HIDDEN,)}
    for layer in range(LAYERS):
        parts = {"attn_norm": (HIDDEN,), "attn_qkv": (3 * HIDDEN, HIDDEN), "attn_output": (HIDDEN, HIDDEN)}
        parts |= {"ffn_norm": (HIDDEN,), "ffn_up": (4 * HIDDEN, HIDDEN), "ffn_down": (HIDDEN, 4 * HIDDEN)}
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in parts.items()}
    add_weights(writer, shapes, kind, rng)
    for name in shapes.keys() - {"token_embd"}:
        writer.add_tensor(f"{name}.bias", (rng.normal(size=shapes[name][:1]) * 0.1).astype(np.float32))
    return written(writer, path)


def loaded(path: Path) -> dict[str, torch.Tensor]:
    """What transformers makes of the file as a whole."""
    config = GgufConfig(dequantize=True)
    return AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, quantization_config=config, dtype=torch.float32
    ).state_dict()


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_matrices_that_transformers_turns_round(kind: str, tmp_path: Path) -> None:
    file = write_gpt2(tmp_path / "model.gguf", gguf.GGMLQuantizationType[kind])
    checkpoint = opened(file)
    for name, values in loaded(file).items():
        if name in checkpoint.names():
            assert torch.equal(checkpoint[name], values), name
    assert checkpoint.quantised("transformer.h.0.attn.c_attn.weight") is None
    assert export(file, tmp_path / "bundle").manifest.target.source.checkpoint == "model.gguf"


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_0", "Q4_1", "Q5_1"])
def test_tensors_equal_what_transformers_loads(kind: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", gguf.GGMLQuantizationType[kind])
    whole, checkpoint = loaded(path), opened(path)
    names = set(whole) - {"lm_head.weight"}  # tied: stored once
    assert set(checkpoint) == names
    assert checkpoint.origin.licence == "mit"
    for name in names:
        assert torch.equal(checkpoint[name], whole[name]), name


def test_a_gguf_exports(tmp_path: Path) -> None:
    report = export(write_gguf(tmp_path / "model.gguf", gguf.GGMLQuantizationType.Q8_0), tmp_path / "bundle", draft="layers:1")
    assert report.manifest.target.source.licence == "mit"
    assert report.manifest.target.fidelity is not None
    assert report.manifest.target.fidelity.relative_rms < 1e-4


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", gguf.GGMLQuantizationType.Q8_0)
    whole = path.read_bytes()
    for size in (len(whole) - 100, len(whole) // 2, 2000, 60, 20):
        cut = tmp_path / f"cut{size}.gguf"
        cut.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=cut.name):
            open_checkpoint(str(cut))


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", gguf.GGMLQuantizationType.F32, architecture="wavenet")
    with pytest.raises(CheckpointError, match="wavenet"):
        open_checkpoint(str(path))


@pytest.mark.parametrize(("factor", "original"), [(8.0, 8192), (32.0, 8192)])
def test_llama_3_rope_factors_become_its_scaling(factor: float, original: int) -> None:
    """The factors as llama.cpp's converter writes them, against the frequencies that transformers makes of the scaling."""
    default = {"rope_type": "default", "rope_theta": 500000.0}
    config = LlamaConfig(hidden_size=512, num_attention_heads=4, head_dim=128, rope_parameters=default)
    wanted = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    wanted["original_max_position_embeddings"] = original
    plain = LlamaRotaryEmbedding(config).inv_freq.double()
    config.rope_parameters = wanted
    factors = (plain / LlamaRotaryEmbedding(config).inv_freq.double()).numpy()
    assert rope_parameters(factors, default) == wanted
    assert rope_parameters(factors * 1.1, default) is None


def test_unknown_rope_factors_are_refused_by_name(tmp_path: Path) -> None:
    factors = np.linspace(1, 3, HIDDEN // HEADS // 2, dtype=np.float32)
    path = write_gguf(tmp_path / "model.gguf", gguf.GGMLQuantizationType.F32, extra={"rope_freqs.weight": factors})
    with pytest.raises(CheckpointError, match="rope_freqs"):
        open_checkpoint(str(path))


def test_tensors_without_a_place_are_refused(tmp_path: Path) -> None:
    extra = {"blk.0.attn_sinks.weight": np.ones(4, np.float32)}
    with pytest.raises(CheckpointError, match="attn_sinks"):
        export(write_gguf(tmp_path / "model.gguf", gguf.GGMLQuantizationType.F32, extra=extra), tmp_path / "bundle")


def test_ends_of_text_come_from_the_file_and_not_from_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [65, 66]}')
    report = export(write_gguf(tmp_path / "model.gguf", gguf.GGMLQuantizationType.F32, end_of_turn=257), tmp_path / "bundle")
    assert report.manifest.tokenizer.eos_ids == (256, 257)
