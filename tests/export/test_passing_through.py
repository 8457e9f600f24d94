"""Quantised checkpoints: what is stored as whole numbers reaches the kernels as the same numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from edgespec.errors import CheckpointError, EdgespecError, UnsupportedModelError
from edgespec.export.checkpoint.gguf_file import EXACT
from edgespec.export.checkpoint.packed import Packed
from edgespec.export.quantise import dequantise
from edgespec.export.recipe import Scheme
from tests.export.conftest import export
from tests.export.test_gguf import write_gguf
from tests.helpers.checkpoints import opened, quantise_checkpoint

GROUP = 32
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
Tensors = dict[str, torch.Tensor]


def rounded(weight: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes int64 [N, K], scales [N, G] that half precision holds, zeros int64 [N, G] from 1 on."""
    blocks = weight.unflatten(1, (-1, GROUP))
    low, high = blocks.amin(-1), blocks.amax(-1)
    scales = ((high - low) / (2**bits - 1)).half().float()
    zeros = torch.round(-low / scales).clamp(1, 2**bits - 1)
    codes = torch.round(blocks / scales[..., None] + zeros[..., None]).clamp(0, 2**bits - 1)
    return codes.flatten(1).long(), scales, zeros.long()


def words(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Whole numbers [R, C] packed into int32 [R, C * bits / 32], the first in the lowest bits."""
    per = 32 // bits
    packed = np.zeros((values.shape[0], values.shape[1] // per), np.uint32)
    for position in range(per):
        packed |= values[:, position::per].numpy().astype(np.uint32) << np.uint32(bits * position)
    return torch.from_numpy(packed.view(np.int32))


def gptq(weight: torch.Tensor, bits: int = 4, order: torch.Tensor | None = None) -> tuple[Tensors, torch.Tensor]:
    """As AutoGPTQ writes it, and the weights that it stands for. ``order`` is an act-order's g_idx."""
    codes, scales, zeros = rounded(weight, bits)
    groups = torch.arange(weight.shape[1]) // GROUP if order is None else order
    values = scales[:, groups] * (codes - zeros[:, groups])
    tensors = {"qweight": words(codes, bits).T, "qzeros": words((zeros - 1).T, bits), "scales": scales.T.half(), "g_idx": groups.int()}
    return tensors, values


def awq(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    codes, scales, zeros = rounded(weight, 4)
    values = scales.repeat_interleave(GROUP, 1) * (codes - zeros.repeat_interleave(GROUP, 1))

    def interleaved(columns: torch.Tensor) -> torch.Tensor:
        return words(columns.unflatten(1, (-1, 8))[:, :, list(AWQ_ORDER)].flatten(1), 4)

    return {"qweight": interleaved(codes.T), "qzeros": interleaved(zeros.T), "scales": scales.T.half()}, values


def compressed(weight: torch.Tensor, bits: int) -> tuple[Tensors, torch.Tensor]:
    """pack-quantized with zero points."""
    codes, scales, zeros = rounded(weight, bits)
    values = scales.repeat_interleave(GROUP, 1) * (codes - zeros.repeat_interleave(GROUP, 1))
    shape = torch.tensor(weight.shape)
    parts = {
        "weight_packed": words(codes, bits),
        "weight_scale": scales,
        "weight_shape": shape,
        "weight_zero_point": words(zeros.T, bits).T,
    }
    return parts, values


def torchao(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    codes, scales, zeros = rounded(weight, 4)
    values = scales.repeat_interleave(GROUP, 1) * (codes - zeros.repeat_interleave(GROUP, 1))
    return {"_weight_qdata": (codes - 8).to(torch.int8), "_weight_scale": scales, "_weight_zero_point": (zeros - 8).to(torch.int8)}, values


CONFIGS: dict[str, dict[str, Any]] = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False},
    "gptq8": {"quant_method": "gptq", "bits": 8, "group_size": GROUP},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True},
    "compressed4": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": GROUP}}},
    },
    "torchao": {"quant_method": "torchao", "quant_type": {}},
}
CONFIGS["compressed8"] = json.loads(json.dumps(CONFIGS["compressed4"]).replace('"num_bits": 4', '"num_bits": 8'))
WRITERS: dict[str, Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]] = {
    "gptq": gptq,
    "gptq8": lambda weight: gptq(weight, 8),
    "awq": awq,
    "compressed4": lambda weight: compressed(weight, 4),
    "compressed8": lambda weight: compressed(weight, 8),
    "torchao": torchao,
}


def write(folder: Path, kind: str, writer: Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]] | None = None) -> Tensors:
    """A tiny Llama whose projections are stored as ``kind``; returns the weights that they stand for, by name."""

    def quantise(module: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        return of_module(module, *(writer or WRITERS[kind])(weight))

    return quantise_checkpoint(folder, CONFIGS[kind], quantise)


def of_module(module: str, parts: Tensors, values: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    return {f"{module}.{part}": tensor for part, tensor in parts.items()}, values


@pytest.mark.parametrize("kind", WRITERS)
def test_stored_numbers_are_kept(kind: str, tmp_path: Path) -> None:
    wanted = write(tmp_path / "checkpoint", kind)
    checkpoint = opened(tmp_path / "checkpoint")
    for name, values in wanted.items():
        assert torch.equal(checkpoint[name], values), name
        quantised = checkpoint.quantised(name)
        assert quantised is not None
        assert quantised.scheme == Scheme(8 if kind.endswith("8") else 4, GROUP)
        assert torch.equal(dequantise(quantised), values), name


@pytest.mark.parametrize("kind", ["gptq", "awq"])
def test_an_export_keeps_them_through_merged_projections(kind: str, tmp_path: Path) -> None:
    """Only activations are rounded then, so the logits are far nearer than any new rounding to 4 bits would leave them."""
    write(tmp_path / "checkpoint", kind)
    target = export(tmp_path / "checkpoint", tmp_path / "bundle", weights="keep").manifest.target
    assert (target.quantisation.method, target.quantisation.bits, target.quantisation.block_size) == ("keep", 4, GROUP)
    assert target.quantisation.tensors is not None
    assert set(target.quantisation.tensors) == {"model.embed_tokens.weight"}
    assert target.fidelity is not None
    assert target.fidelity.relative_rms < 0.03


def test_act_order_is_read_and_refitted(tmp_path: Path) -> None:
    """Groups of scattered columns are no blocks: the values are read right, and rounded anew at 8 bits."""

    def writer(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        groups = torch.arange(weight.shape[1]) // GROUP
        return gptq(weight, order=groups[torch.randperm(len(groups), generator=torch.Generator().manual_seed(0))])

    wanted = write(tmp_path / "checkpoint", "gptq", writer)
    checkpoint = opened(tmp_path / "checkpoint")
    name, values = next(iter(wanted.items()))
    assert torch.equal(checkpoint[name], values)
    assert checkpoint.quantised(name) is None
    target = export(tmp_path / "checkpoint", tmp_path / "bundle", weights="keep").manifest.target
    assert target.quantisation.bits == 8


@pytest.mark.parametrize(("kind", "scheme"), [("Q4_0", Scheme(4, 32)), ("Q5_0", Scheme(8, 32)), ("Q8_0", Scheme(8, 32)), ("Q4_1", None)])
def test_gguf_types_without_a_minimum_are_kept(kind: str, scheme: Scheme | None, tmp_path: Path) -> None:
    """Q and K are stored with their rows in another order, which codes and scales must follow."""
    checkpoint = opened(write_gguf(tmp_path / "model.gguf", gguf.GGMLQuantizationType[kind]))
    for name in checkpoint:
        if not name.endswith(("proj.weight", "tokens.weight")):
            continue
        quantised = checkpoint.quantised(name)
        assert (quantised and quantised.scheme) == scheme
        if quantised is not None:
            assert torch.equal(dequantise(quantised), checkpoint[name]), name


def test_q6_k_blocks_are_kept() -> None:
    """Random bytes are a valid Q6_K tensor: 210 for every 256 weights."""
    kind = gguf.GGMLQuantizationType.Q6_K
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, (8, 2 * 210), dtype=np.uint8)
    data.reshape(8, 2, 210)[:, :, 208:] = np.array([0.01], np.float16).view(np.uint8)
    bits, size, scale_of = EXACT[kind]
    values, scales = torch.from_numpy(gguf.dequantize(data, kind)), torch.from_numpy(scale_of(data.reshape(8, 2, 210)))
    groups = torch.arange(512) // size
    codes = (values / torch.where(scales == 0, 1.0, scales)[:, groups]).round() + 32
    packed = Packed(codes.to(torch.uint8), scales, torch.full(scales.shape, 32), groups, bits)
    quantised = packed.quantised()
    assert quantised is not None
    assert quantised.scheme == Scheme(8, 16)
    assert torch.equal(dequantise(quantised), values)


@pytest.mark.parametrize("kind", ["Q5_1", "Q4_K", "Q5_K"])
def test_gguf_types_with_a_minimum_are_refitted_at_eight_bits(kind: str, tmp_path: Path) -> None:
    """16 (5 bits: 8) steps of the kernel for one of theirs: next to nothing is lost, and the manifest says how much."""
    path = write_gguf(tmp_path / "model.gguf", gguf.GGMLQuantizationType[kind], hidden=256, inner=256)
    target = export(path, tmp_path / "bundle", weights="keep").manifest.target
    assert (target.quantisation.method, target.quantisation.bits, target.quantisation.block_size) == ("keep", 8, 32)
    assert target.quantisation.tensors is None
    assert target.fidelity is not None
    assert 0 < target.fidelity.relative_rms < 0.05


def test_a_config_that_disagrees_with_its_tensors(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    write(folder, "gptq")
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for changes in ({"bits": 8}, {"bits": 3}, {"bits": 2}):
        path.write_text(json.dumps({**config, "quantization_config": {**config["quantization_config"], **changes}}))
        with pytest.raises(CheckpointError, match=r"layers\.\d.*quantization_config"):
            export(folder, tmp_path / "bundle", weights="int8")


MIXED = {
    "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}},
    "group_1": {"targets": [r"re:.*down_proj$"], "weights": {"num_bits": 8, "type": "int", "strategy": "group", "group_size": GROUP}},
    "group_2": {"targets": ["model.layers.1.mlp.up_proj"], "weights": {"num_bits": 8, "type": "int"}},
}


def write_mixed(folder: Path, groups: Any) -> Tensors:
    """down_proj and one up_proj in 8 bits, the latter as bytes, everything else in 4."""

    def quantise(module: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        as_bytes = module == "model.layers.1.mlp.up_proj"
        parts, values = compressed(weight, 8 if as_bytes or module.endswith("down_proj") else 4)
        if as_bytes:
            codes, scales, zeros = rounded(weight, 8)
            parts = {"weight": (codes - 128).to(torch.int8), "weight_scale": scales, "weight_zero_point": (zeros - 128).to(torch.int8)}
        return of_module(module, parts, values)

    return quantise_checkpoint(folder, {"quant_method": "compressed-tensors", "config_groups": groups}, quantise)


def test_compressed_tensors_of_several_groups(tmp_path: Path) -> None:
    wanted = write_mixed(tmp_path / "checkpoint", MIXED)
    checkpoint = opened(tmp_path / "checkpoint")
    for name, values in wanted.items():
        assert torch.equal(checkpoint[name], values), name
        quantised = checkpoint.quantised(name)
        assert quantised is not None
        assert quantised.scheme.bits == (8 if "down_proj" in name or name == "model.layers.1.mlp.up_proj.weight" else 4), name


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"group_0": MIXED["group_0"]}, "numbers of 4 bits"),
        ({"group_0": MIXED["group_1"]}, "numbers of 8 bits"),
        ({"group_1": MIXED["group_1"], "group_2": MIXED["group_2"]}, "no group of 2 is for it"),
        ({"group_0": {**MIXED["group_0"], "targets": ["re:(", "Linear"]}, "group_1": MIXED["group_1"]}, "quantization_config"),
        ([MIXED["group_0"]], "quantization_config"),
    ],
)
def test_groups_that_are_not_those_of_the_tensors(groups: Any, message: str, tmp_path: Path) -> None:
    write_mixed(tmp_path / "checkpoint", groups)
    with pytest.raises(CheckpointError, match=message):
        export(tmp_path / "checkpoint", tmp_path / "bundle", weights="int8")


def test_packed_matrices_have_the_configurations_shapes(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    write(folder, "gptq")
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "intermediate_size": 2 * config["intermediate_size"]}))
    for weights in ("int8", "keep"):
        with pytest.raises(CheckpointError, match=r"mlp\.\w+\.weight has shape \[.*\] where its configuration says"):
            export(folder, tmp_path / "bundle", weights=weights)


def test_methods_that_are_not_read_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    write(folder, "gptq")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "hqq"}}))
    with pytest.raises(UnsupportedModelError, match="hqq"):
        export(folder, tmp_path / "bundle")


def test_nothing_to_keep_in_a_float_checkpoint(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(EdgespecError, match="float weights"):
        export(llama, tmp_path / "bundle", weights="keep")


def test_compressed_tensors_own_packing() -> None:
    """The library's packing is what the test writes."""
    helpers = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers")
    codes, _, zeros = rounded(torch.randn(16, 64, generator=torch.Generator().manual_seed(0)), 4)
    assert torch.equal(helpers.pack_to_int32((codes - 8).to(torch.int8), 4), words(codes, 4))
    assert torch.equal(helpers.pack_to_int32((zeros - 8).to(torch.int8), 4, packed_dim=0), words(zeros.T, 4).T)
