"""MXFP4 experts, as gpt-oss is published: read as transformers itself dequantises them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from edgespec.errors import CheckpointError
from tests.export.conftest import export
from tests.helpers.checkpoints import make_checkpoint, opened

SETTINGS = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 64, "num_hidden_layers": 2}
Tensors = dict[str, torch.Tensor]


def write(folder: Path) -> tuple[Tensors, Tensors]:
    """A tiny gpt-oss whose experts are random MXFP4; all stored tensors, and the experts' values by transformers."""
    make_checkpoint(folder, "gpt_oss", **SETTINGS)
    tensors, wanted = load_file(folder / "model.safetensors"), {}
    generator = torch.Generator().manual_seed(0)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, columns, rows = tensors.pop(name).shape
        blocks = torch.randint(0, 256, (experts, rows, columns // 32, 16), dtype=torch.uint8, generator=generator)
        scales = torch.randint(119, 124, (experts, rows, columns // 32), dtype=torch.uint8, generator=generator)
        wanted[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "mxfp4"}}))
    assert len(wanted) == 4
    return tensors, wanted


def test_values_are_those_of_transformers(tmp_path: Path) -> None:
    _, wanted = write(tmp_path)
    checkpoint = opened(tmp_path)
    assert checkpoint.is_quantised
    assert checkpoint.unused() == []
    for name, values in wanted.items():
        assert torch.equal(checkpoint.read_float(name), values), name
        assert checkpoint.quantised(name) is None


def test_an_export_at_eight_bits_is_near(tmp_path: Path) -> None:
    write(tmp_path / "checkpoint")
    fidelity = export(tmp_path / "checkpoint", tmp_path / "bundle", weights="int8").manifest.target.fidelity
    assert fidelity is not None
    assert fidelity.relative_rms < 0.1


def test_what_is_no_mxfp4_is_named(tmp_path: Path) -> None:
    tensors, _ = write(tmp_path)
    name = "model.layers.1.mlp.experts.down_proj"
    for broken, message in (
        ({f"{name}_scales": tensors[f"{name}_scales"][:, :-1].contiguous()}, "no MXFP4"),
        ({f"{name}_scales": torch.full_like(tensors[f"{name}_scales"], 255)}, "not finite"),
    ):
        save_file({**tensors, **broken}, tmp_path / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(CheckpointError, match=rf"layers\.1\.mlp\.experts\.down_proj.*{message}"):
            opened(tmp_path).read_float(name)
    save_file({key: value for key, value in tensors.items() if key != f"{name}_scales"}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="down_proj"):
        export(tmp_path, tmp_path / "bundle")
