"""The models that the benchmark gives other engines: the same weights, and a draft of the target's first layers."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import AutoModelForCausalLM

from benchmarks.peers.models import bytes_of, first_layers, float_checkpoint, rewritten_gguf
from edgespec.export.checkpoint import open_checkpoint
from edgespec.export.trace.model import build_empty
from tests.export.test_gguf import write_gguf


def test_a_draft_is_the_first_layers_in_every_format(tmp_path: Path) -> None:
    given = write_gguf(tmp_path / "model.gguf", gguf.GGMLQuantizationType.Q4_1)
    whole = AutoModelForCausalLM.from_pretrained(float_checkpoint(given, tmp_path)).state_dict()
    draft = AutoModelForCausalLM.from_pretrained(first_layers(tmp_path / "checkpoint", tmp_path, 1))
    assert draft.config.num_hidden_layers == 1
    assert (tmp_path / "checkpoint-layers1" / "tokenizer.json").exists()
    for name, values in draft.state_dict().items():
        assert torch.equal(values, whole[name]), name
    written = open_checkpoint(str(rewritten_gguf(given, tmp_path / "draft.gguf", layers=1)))
    written.bind(build_empty(written.config_copy()))
    assert set(written) == {name for name in draft.state_dict() if name != "lm_head.weight"}
    for name in written:
        assert torch.equal(written[name], whole[name]), name


def test_a_gguf_is_stored_in_another_form(tmp_path: Path) -> None:
    given = write_gguf(tmp_path / "model.gguf", gguf.GGMLQuantizationType.Q4_1)
    written = {tensor.name: tensor for tensor in gguf.GGUFReader(rewritten_gguf(given, tmp_path / "q8.gguf", "Q8_0")).tensors}
    for tensor in gguf.GGUFReader(given).tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        found = written[tensor.name]
        kind = "Q8_0" if len(tensor.shape) > 1 else "F32"
        assert found.tensor_type.name == kind
        np.testing.assert_allclose(gguf.dequantize(found.data, found.tensor_type), values, atol=np.abs(values).max() / 127)


def test_a_file_with_several_names_counts_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "weights").write_bytes(b"12345")
    (tmp_path / "b").hardlink_to(tmp_path / "a" / "weights")
    assert bytes_of(tmp_path / "a", tmp_path / "b") == 5
