"""Quantised checkpoints as the formats' own libraries write and read them, where these are installed:

pip install torchao compressed-tensors
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from edgespec.export.quantise import dequantise
from tests.export.test_passing_through import GROUP, Tensors, rounded
from tests.helpers.checkpoints import opened, quantise_checkpoint


def check(folder: Path, wanted: Tensors, bits: int) -> None:
    """Read as the library reads it, and kept as it is stored."""
    checkpoint = opened(folder)
    assert checkpoint.unused() == []
    for name, values in wanted.items():
        assert torch.allclose(checkpoint[name], values.float(), rtol=1e-6, atol=0), name
        quantised = checkpoint.quantised(name)
        assert quantised is not None
        assert quantised.scheme.bits == bits
        assert torch.equal(dequantise(quantised), checkpoint[name]), name


@pytest.mark.parametrize(("symmetric", "bits"), [(True, 4), (False, 4), (True, 8)])
def test_compressed_tensors(symmetric: bool, bits: int, tmp_path: Path) -> None:
    library = pytest.importorskip("compressed_tensors", reason="pip install compressed-tensors")
    compressor = pytest.importorskip("compressed_tensors.compressors").PackedQuantizationCompressor
    schemes = pytest.importorskip("compressed_tensors.quantization")
    weights = schemes.QuantizationArgs(num_bits=bits, type="int", strategy="group", group_size=GROUP, symmetric=symmetric)
    scheme = schemes.QuantizationScheme(targets=["Linear"], weights=weights)

    def quantise(module: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        _, scales, zeros = rounded(weight, bits)
        zeros = torch.zeros_like(zeros) if symmetric else zeros - 2 ** (bits - 1)
        state = {"weight": weight, "weight_scale": scales, "weight_zero_point": zeros.to(torch.int8)}
        stored = compressor.compress(state, scheme)
        return {f"{module}.{part}": tensor for part, tensor in stored.items()}, compressor.decompress(stored, scheme)["weight"]

    settings = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "version": library.__version__,
        "config_groups": {"group_0": json.loads(scheme.model_dump_json())},
    }
    wanted = quantise_checkpoint(tmp_path, settings, quantise)
    check(tmp_path, wanted, bits)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_torchao(kind: str, tmp_path: Path) -> None:
    """Saved as transformers saves it: every tensor subclass flattened to its parts."""
    library = pytest.importorskip("torchao.quantization", reason="pip install torchao")
    flatten = pytest.importorskip("torchao.prototype.safetensors.safetensors_support").flatten_tensor_state_dict
    by_group = library.granularity.PerGroup(GROUP)
    config = library.Int8WeightOnlyConfig() if kind == "int8" else library.IntxWeightOnlyConfig(torch.int4, by_group)

    def quantise(module: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        linear = torch.nn.Sequential(torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)).requires_grad_(False)
        linear[0].weight = torch.nn.Parameter(weight, requires_grad=False)
        library.quantize_(linear, config)
        parts, _ = flatten({f"{module}.weight": linear[0].weight})
        return parts, linear[0].weight.dequantize()

    wanted = quantise_checkpoint(tmp_path, {"quant_method": "torchao", "quant_type": {"default": {}}}, quantise)
    check(tmp_path, wanted, 8 if kind == "int8" else 4)
