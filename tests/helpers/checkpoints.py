"""Tiny random checkpoints, written as transformers writes real ones."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from edgespec.export.checkpoint import Checkpoint, open_checkpoint
from edgespec.export.trace.model import build_empty
from tests.helpers.bundles import EOS, VOCAB, byte_tokenizer

CAPACITY = 96
Quantise = Callable[[str, torch.Tensor], tuple[dict[str, torch.Tensor], torch.Tensor]]
"""From a module's name and its weight to what is stored, by full names, and the values that are read from that."""
BASE: dict[str, Any] = {
    "vocab_size": 288,  # more rows than the tokenizer has tokens, as real models do
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": CAPACITY,
    "pad_token_id": EOS,
    "bos_token_id": EOS,
    "eos_token_id": EOS,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"tie_word_embeddings": True},
    "gemma3_text": {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
}


def make_model(architecture: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A random model whose weights are large enough that every part of it shows in the logits."""
    torch.manual_seed(seed)
    model = auto_class(architecture).from_config(make_config(architecture, **changes), attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def make_config(architecture: str, **changes: Any) -> Any:
    """A tiny configuration; ``...`` takes a setting out. A multimodal one has its decoder's settings in ``text_config``."""
    changes = copy.deepcopy(changes)  # configurations write into the dictionaries that they are given
    if "text_config" not in changes:
        return CONFIG_MAPPING[architecture](**_settings({**FAMILIES.get(architecture, {}), **changes}))
    return CONFIG_MAPPING[architecture](**{**changes, "text_config": _settings(changes["text_config"])})


def auto_class(architecture: str) -> Any:
    """The class of transformers that loads such a model with its head."""
    return AutoModelForCausalLM if CONFIG_MAPPING[architecture] in MODEL_FOR_CAUSAL_LM_MAPPING else AutoModelForImageTextToText


def _settings(changes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**BASE, **changes}.items() if value is not ...}


def make_tokenizer(**changes: Any) -> PreTrainedTokenizerFast:
    """The byte-level tokenizer of the bundles made on the fly."""
    return PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer(), eos_token="<eos>", bos_token="<eos>", **changes)


def make_checkpoint(folder: Path, architecture: str = "llama", seed: int = 0, **changes: Any) -> Path:
    """A checkpoint folder: configuration, safetensors and tokenizer."""
    make_model(architecture, seed, **changes).save_pretrained(folder)
    tokenizer = make_tokenizer()
    assert len(tokenizer) == VOCAB
    tokenizer.save_pretrained(folder)
    return folder


def quantise_checkpoint(folder: Path, settings: Any, quantise: Quantise) -> dict[str, torch.Tensor]:
    """A tiny Llama with quantised projections; returns the weights that they stand for, by name."""
    make_checkpoint(folder, "llama", tie_word_embeddings=True)
    tensors, wanted = load_file(folder / "model.safetensors"), {}
    for name in [name for name in tensors if name.endswith("proj.weight")]:
        parts, wanted[name] = quantise(name.removesuffix(".weight"), tensors.pop(name))
        tensors |= {part: tensor.contiguous() for part, tensor in parts.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    return wanted


def opened(path: Path) -> Checkpoint:
    """As the exporter opens a checkpoint, with the names of its model."""
    checkpoint = open_checkpoint(str(path))
    checkpoint.bind(build_empty(checkpoint.config_copy()))
    return checkpoint
