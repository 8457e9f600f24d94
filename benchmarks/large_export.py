"""Peak memory and time of exporting a large model: a checkpoint in Llama layout with random weights (1.7 billion by default).

    python benchmarks/large_export.py TOKENIZER_FOLDER WORK_FOLDER [--weights int4] [--method search] [--block-size 32] [--draft layers:2]

TOKENIZER_FOLDER is any checkpoint folder with a tokenizer of at most 49,152 tokens. The checkpoint is written once, shard by shard.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig

from edgespec.export import ExportConfig, export_bundle

HIDDEN, INNER, LAYERS, HEADS, VOCAB = 2048, 8192, 24, 32, 49152


def write_checkpoint(folder: Path, tokenizer: Path, layers: int = LAYERS) -> None:
    """bfloat16, one shard per layer."""
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        values = torch.randn(*shape, generator=generator) / math.sqrt(shape[-1])
        return values.to(torch.bfloat16)

    weight_map: dict[str, str] = {}

    def save(tensors: dict[str, torch.Tensor]) -> None:
        file = f"model-{len(set(weight_map.values())):05}.safetensors"
        save_file(tensors, folder / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(tensors, file))

    save({"model.embed_tokens.weight": random(VOCAB, HIDDEN), "model.norm.weight": torch.ones(HIDDEN, dtype=torch.bfloat16)})
    for layer in range(layers):
        shapes = {f"self_attn.{part}_proj": (HIDDEN, HIDDEN) for part in "qkvo"}
        shapes |= {"mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER)}
        tensors = {f"model.layers.{layer}.{name}.weight": random(*shape) for name, shape in shapes.items()}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{norm}.weight"] = torch.ones(HIDDEN, dtype=torch.bfloat16)
        save(tensors)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        architectures=["LlamaForCausalLM"],
    ).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, folder / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--weights", default="int4")
    parser.add_argument("--method", default="search")
    parser.add_argument("--block-size", type=int, default=32)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--draft", help="As for edgespec export, for runs of a pair under a memory budget.")
    args = parser.parse_args()
    checkpoint = args.work / f"random-{args.layers}"
    if not checkpoint.exists():
        write_checkpoint(checkpoint, args.tokenizer, args.layers)
    options = {"weights": args.weights, "method": args.method, "draft": args.draft, "block_size": args.block_size}
    config = ExportConfig(target=str(checkpoint), output=args.work / "bundle", force=True, max_kl=1e3, context=2048, **options)
    report = export_bundle(config)
    facts = {
        "weights": args.weights,
        "method": args.method,
        "block_size": args.block_size,
        "seconds": round(report.seconds),
        "peak_rss_mb": round(report.peak_rss_bytes / 1e6),
        "bundle_mb": round(sum(report.sizes.values()) / 1e6),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
