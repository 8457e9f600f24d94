"""Tiny random checkpoints, written as transformers writes real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from tests.helpers.bundles import EOS, VOCAB, byte_tokenizer

CAPACITY = 96
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
    config = CONFIG_MAPPING[architecture](**{**BASE, **FAMILIES.get(architecture, {}), **changes})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


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
