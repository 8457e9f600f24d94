"""The architectures that are tested, with what is peculiar to each, and the table of them in docs/architectures.md.

    python -m tests.export.architectures     # export and measure all of them, and write the table: some minutes

Every case is a tiny random checkpoint. A peculiarity is tested for its value: the configuration without it, or the tensors
behind it changed a little, must give other logits; otherwise a graph that lacks it would pass.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).parents[2] / "docs" / "architectures.md"
ALTERNATING = ["sliding_attention", "full_attention", "sliding_attention"]
SHARING = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"]
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 24}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 64,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 2.0, 2.5, 3.0],
    "long_factor": [2.0, 2.1, 2.2, 3.3, 3.5, 4.0, 4.5, 5.0],
}
VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}

WINDOW = {"windows alternate with full layers": {"sliding_window": 90}}
Without = Mapping[str, Any] | str
"""How a peculiarity is taken away: settings to change, or a pattern for names of tensors to change."""


@dataclasses.dataclass(frozen=True)
class Case:
    """``fast`` cases run in every test run, the others with ``-m slow``."""

    architecture: str
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    peculiar: dict[str, Without] = dataclasses.field(default_factory=dict)
    variant: str = ""
    fast: bool = False

    @property
    def name(self) -> str:
        return f"{self.architecture} ({self.variant})" if self.variant else self.architecture


BIASES = {"biases": r"(q|o|gate|up|down|query_key_value|dense|fc1|c_attn|c_fc|c_proj|out)\w*\.bias$"}
QK_NORMS = {"q/k norms": r"(q|k|query|key)_(norm|layernorm)\."}
TIED = {"tied head": r"embed_tokens\.weight$|wte\.weight$"}

CASES = (
    Case(
        "llama",
        {"rope_parameters": LLAMA3},
        {"rope scaling llama3": {"rope_parameters": PLAIN_ROPE}, "untied head": r"lm_head"},
        fast=True,
    ),
    Case("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}, BIASES | TIED, "biases"),
    Case("mistral", {"sliding_window": 8}, {"windows in all layers": {"sliding_window": None}}),
    Case("ministral", {"sliding_window": 8, "layer_types": ALTERNATING}, WINDOW),
    Case(
        "qwen2",
        {"tie_word_embeddings": True, "rope_parameters": YARN},
        {"biases on q, k, v": r"[qkv]_proj\.bias$", "rope scaling yarn": {"rope_parameters": PLAIN_ROPE}} | TIED,
        fast=True,
    ),
    Case("qwen3", {"tie_word_embeddings": True}, QK_NORMS | TIED, fast=True),
    Case("gemma", {"head_dim": 32}, {"norms of 1 + weight": r"layernorm\.weight$"} | TIED),
    Case(
        "gemma2",
        {
            "sliding_window": 8,
            "layer_types": ALTERNATING,
            "attn_logit_softcapping": 0.5,
            "final_logit_softcapping": 1.0,
            "query_pre_attn_scalar": 4,
        },
        {
            "soft-capped attention": {"attn_logit_softcapping": None},
            "soft-capped logits": {"final_logit_softcapping": None},
            "scale of attention": {"query_pre_attn_scalar": 16},
        }
        | WINDOW,
        fast=True,
    ),
    Case(
        "gemma3_text",
        {
            "sliding_window": 8,
            "layer_types": ALTERNATING,
            "rope_parameters": {
                "sliding_attention": PLAIN_ROPE,
                "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 2.0},
            },
        },
        {
            "two rope bases": {"rope_parameters": {"sliding_attention": PLAIN_ROPE, "full_attention": PLAIN_ROPE}},
            "rope scaling linear": {
                "rope_parameters": {
                    "sliding_attention": PLAIN_ROPE,
                    "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
                }
            },
        }
        | WINDOW
        | QK_NORMS,
        fast=True,
    ),
    Case("phi", {"rope_parameters": {**PLAIN_ROPE, "partial_rotary_factor": 0.5}, "qk_layernorm": True}, BIASES | QK_NORMS),
    Case(
        "phi3",
        {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64, "sliding_window": 8},
        {"rope scaling longrope": {"rope_parameters": PLAIN_ROPE}, "windows in all layers": {"sliding_window": None}},
        fast=True,
    ),
    Case("smollm3", {"no_rope_layers": [1, 0, 1]}, {"layers without positions": {"no_rope_layers": [1, 1, 1]}}),
    Case(
        "granite",
        {"embedding_multiplier": 3.0, "attention_multiplier": 0.5, "residual_multiplier": 0.7, "logits_scaling": 0.5},
        {
            "embedding multiplier": {"embedding_multiplier": 1.0},
            "attention multiplier": {"attention_multiplier": 0.25},
            "residual multiplier": {"residual_multiplier": 1.0},
            "scaled logits": {"logits_scaling": 1.0},
        },
    ),
    Case("olmo2", {}, {"q/k norms over all heads": r"[qk]_norm\.", "norms behind the layers": r"post_\w+_layernorm\."}),
    Case(
        "olmo3",
        {"sliding_window": 8, "layer_types": ALTERNATING},
        QK_NORMS | WINDOW,
    ),
    Case(
        "gpt_neox",
        {"rope_parameters": {**PLAIN_ROPE, "partial_rotary_factor": 0.5}},
        {
            "partial rotary": {"rope_parameters": {**PLAIN_ROPE, "partial_rotary_factor": 1.0}},
            "parallel residual": {"use_parallel_residual": False},
            "old name of the head": r"lm_head\.weight",
        }
        | BIASES,
    ),
    Case("gpt2", {}, {"learned positions": r"wpe\.", "transposed matrices": r"c_attn\.weight$"} | BIASES | TIED, fast=True),
    Case("opt", {}, {"learned positions with an offset": r"embed_positions\."} | BIASES | TIED),
    Case(
        "stablelm",
        {
            "rope_parameters": {**PLAIN_ROPE, "partial_rotary_factor": 0.5},
            "use_qkv_bias": True,
            "qk_layernorm": True,
            "use_parallel_residual": True,
        },
        {
            "partial rotary": {"rope_parameters": {**PLAIN_ROPE, "partial_rotary_factor": 1.0}},
            "biases on q, k, v": r"[qkv]_proj\.bias$",
            "parallel residual": {"use_parallel_residual": False},
        }
        | QK_NORMS,
    ),
    Case("starcoder2", {"sliding_window": 8}, {"windows in all layers": {"sliding_window": None}} | BIASES),
    Case(
        "cohere",
        {"logit_scale": 0.5, "use_qk_norm": True},
        {"scaled logits": {"logit_scale": 0.25}, "interleaved rotary": {"rope_parameters": {**PLAIN_ROPE, "rope_theta": 100.0}}} | QK_NORMS,
    ),
    Case(
        "cohere2",
        {"logit_scale": 0.5, "sliding_window": 8, "layer_types": ALTERNATING},
        {"layers without positions": {"layer_types": ["sliding_attention"] * 3}, "scaled logits": {"logit_scale": 0.25}} | WINDOW,
        fast=True,
    ),
    Case(
        "exaone4",
        {"sliding_window": 8, "layer_types": ALTERNATING},
        {"norms behind the layers": r"post_\w+_layernorm\."} | WINDOW | QK_NORMS,
    ),
    Case(
        "nemotron",
        {"rope_parameters": {**PLAIN_ROPE, "partial_rotary_factor": 0.5}},
        {
            "layer norms of 1 + weight": r"layernorm\.weight$",
            "partial rotary": {"rope_parameters": {**PLAIN_ROPE, "partial_rotary_factor": 1.0}},
        },
    ),
    Case(
        "glm",
        {"rope_parameters": {**PLAIN_ROPE, "partial_rotary_factor": 0.5}, "attention_bias": True},
        {
            "partial rotary, interleaved": {"rope_parameters": {**PLAIN_ROPE, "partial_rotary_factor": 1.0}},
            "biases on q, k, v": r"[qkv]_proj\.bias$",
        },
        fast=True,
    ),
    Case("glm4", {"attention_bias": True}, {"norms behind the layers": r"post_\w+_layernorm\.", "biases on q, k, v": r"[qkv]_proj\.bias$"}),
    Case("ernie4_5", {"use_bias": True}, BIASES | TIED),
    Case("hunyuan_v1_dense", {}, {"q/k norms behind the rotation": r"(query|key)_layernorm\."}),
    Case("seed_oss", {"attention_bias": True, "attention_out_bias": True}, BIASES),
    Case(
        "apertus",
        {"rope_parameters": LLAMA3},
        {"activation with parameters": r"act_fn\.alpha", "rope scaling llama3": {"rope_parameters": PLAIN_ROPE}} | QK_NORMS,
    ),
    Case("arcee", {"rope_parameters": YARN}, {"rope scaling yarn": {"rope_parameters": PLAIN_ROPE}}),
    Case("helium", {}, {"interleaved rotary": {"rope_parameters": {**PLAIN_ROPE, "rope_theta": 10.0}}}),
    Case(
        "qwen3_moe",
        {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": False},
        {"experts": r"experts\.", "weights of experts that do not sum to 1": {"norm_topk_prob": True}} | QK_NORMS,
    ),
    Case(
        "mixtral",
        {"num_local_experts": 4, "num_experts_per_tok": 2},
        {"experts": r"experts\.", "two experts for each token": {"num_experts_per_tok": 1}},
    ),
    Case(
        "gpt_oss",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 8,
            "layer_types": ALTERNATING,
            "rope_parameters": YARN,
        },
        {
            "attention sinks": r"sinks$",
            "experts with biases": r"experts\.\w+_bias",
            "rope scaling yarn": {"rope_parameters": PLAIN_ROPE},
        }
        | WINDOW,
        fast=True,
    ),
    Case("lfm2", {"layer_types": ["full_attention"] * 3}, QK_NORMS, "without convolutions"),
    Case(
        "gemma3n_text",
        {
            "num_hidden_layers": 5,
            "num_kv_shared_layers": 2,
            "layer_types": SHARING,
            "sliding_window": 8,
            "vocab_size_per_layer_input": 288,
            "hidden_size_per_layer_input": 16,
            "laurel_rank": 8,
        },
        {"layers that share KV": {"num_kv_shared_layers": 0}, "inputs per layer": r"embed_tokens_per_layer"} | WINDOW,
    ),
    Case(
        "gemma4_text",
        {
            "num_hidden_layers": 5,
            "num_kv_shared_layers": 2,
            "layer_types": SHARING,
            "sliding_window": 8,
            "global_head_dim": 32,
            "vocab_size_per_layer_input": 288,
            "hidden_size_per_layer_input": 16,
        },
        {"layers that share KV": {"num_kv_shared_layers": 0}, "inputs per layer": r"embed_tokens_per_layer"} | WINDOW,
        fast=True,
    ),
    Case(
        "gemma3",
        {
            "text_config": {"sliding_window": 8, "layer_types": ALTERNATING},
            "vision_config": VISION,
            "mm_tokens_per_image": 4,
            "boi_token_index": 280,
            "eoi_token_index": 281,
            "image_token_index": 282,
        },
        {"windows alternate with full layers": {"text_config": {"sliding_window": 90}}},
        "text of a multimodal model",
    ),
    Case(
        "qwen2_5_vl",
        {
            "text_config": {"head_dim": ..., "rope_parameters": {**PLAIN_ROPE, "mrope_section": [2, 3, 3]}},
            "vision_config": {
                "depth": 3,
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_heads": 2,
                "out_hidden_size": 64,
                "patch_size": 14,
                "fullatt_block_indexes": [1],
            },
            "image_token_id": 282,
            "video_token_id": 283,
            "vision_start_token_id": 280,
            "vision_end_token_id": 281,
        },
        {"biases on q, k, v": r"language_model.*[qkv]_proj\.bias$"},
        "text of a multimodal model",
    ),
    Case(
        "llava",
        {
            "text_config": {"model_type": "mistral", "sliding_window": None},
            "vision_config": {"model_type": "clip_vision_model", **VISION},
            "image_token_index": 282,
        },
        {"untied head": r"lm_head"},
        "text of a multimodal model",
    ),
)

REFUSED: tuple[tuple[str, dict[str, Any], str, str], ...] = (
    ("mamba", {"state_size": 8}, r"mamba: layer 0 \(MambaBlock.*MambaMixer", "state space"),
    ("jamba", {}, r"jamba: layer 0 .*JambaMambaMixer", "state space"),
    ("lfm2", {"layer_types": ["full_attention", "conv"]}, r"lfm2: layer 1 .*Lfm2ShortConv", "convolution; exported when it has none"),
    ("bloom", {"n_head": 4, "n_layer": 2}, r"bloom: layer 0 .*BloomAttention", "ALiBi"),
    ("mpt", {}, r"mpt: layer 0 .*MptAttention", "ALiBi"),
    ("falcon", {"alibi": True, "head_dim": ...}, r"falcon: layer 0 .*FalconAttention", "attention of its own, ALiBi"),
    ("llama4_text", {"intermediate_size_mlp": 96, "num_local_experts": 2}, r"llama4_text: layer 0 .*in chunks", "attention in chunks"),
    (
        "deepseek_v3",
        {"n_routed_experts": 4, "n_group": 1, "topk_group": 1}
        | {"head_dim": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16},
        r"deepseek_v3: layer 0 .*DeepseekV3Attention.* keys of 24 numbers and values of 16",
        "latent attention: keys and values of different size",
    ),
)
"""Architecture, settings, the message, and what stands in the way."""

HEAD = """# Architectures

Written by `python -m tests.export.architectures`; do not edit. Each line is a tiny random checkpoint, exported in fp32 and run with
the runtime's own model against transformers {transformers}: a prefill of 30 tokens, 5 tokens on the past of which 2 are kept, then
1, 7 and 20 more, a tree of 7 nodes with siblings, and on from one of its branches. The tests accept a difference of 1e-4 in any logit.

What is listed as tested for value changes the logits when it is taken away, which the tests check too.
Graphs are traced from transformers' own code, so most decoders that are not listed work as well; these are the ones that are proven.

| architecture | tested for value | largest difference | in every test run |
|---|---|---|---|
"""

TAIL = """
## Refused

Before any work, with the layer named.

| architecture | why |
|---|---|
"""


def render(measured: Mapping[str, str], transformers: str) -> str:
    """The document, with the largest difference of each case as text."""
    lines = [
        f"| {case.name} | {', '.join(case.peculiar)} | {measured.get(case.name, 'not measured')} | {'yes' if case.fast else ''} |"
        for case in CASES
    ]
    refused = [f"| {architecture} | {why} |" for architecture, _, _, why in REFUSED]
    return HEAD.format(transformers=transformers) + "\n".join(lines) + "\n" + TAIL + "\n".join(refused) + "\n"


def recorded(text: str) -> tuple[dict[str, str], str]:
    """What a rendered document says was measured, and with which transformers."""
    rows = re.findall(r"^\| ([\w ()]+) \| [^|]* \| ([\d.e-]+) \|", text, re.MULTILINE)
    version = re.search(r"transformers ([\w.]+):", text)
    return dict(rows), version.group(1) if version else ""


def main() -> None:
    import transformers

    from tests.export.test_families import Exported, largest_difference

    measured = {}
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            measured[case.name] = f"{largest_difference(Exported.make(case, Path(folder))):.1e}"
        print(f"{case.name:40s} {measured[case.name]}", file=sys.stderr, flush=True)
    DOCUMENT.write_text(render(measured, transformers.__version__), encoding="utf-8")


if __name__ == "__main__":
    main()
