"""How far quantised models are from the float one: bytes, KL, top-1 agreement and perplexity, edgespec beside its peers.

    python -m benchmarks.fidelity GGUF [--only TEXT ...] [--folder FOLDER] [NAME=BUNDLE ...]

The GGUF's weights, as float32, are the original; every engine quantises these with its own tool and is run by itself, with the token
sequences of the project's held text, which nothing is fitted to. Models are made once and kept in FOLDER. A Markdown table comes out.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.peers import models
from benchmarks.peers.environments import Unavailable
from benchmarks.scores import Held, Score, bundle_score, genai_score, llama_cpp_score, openvino_score
from edgespec.cache import cache_folder

BUNDLES: dict[str, tuple[str, ...]] = {
    "edgespec int4, blocks of 32": ("int4", "32"),
    "edgespec int4, blocks of 64": ("int4", "64"),
    "edgespec int4, blocks of 128": ("int4", "128"),
    "edgespec int4, symmetric, blocks of 32": ("int4", "32", "--symmetric"),
    "edgespec int4, symmetric, blocks of 64": ("int4", "64", "--symmetric"),
    "edgespec mixed, blocks of at most 128": ("mixed", "128"),
    "edgespec mixed, KL of at most 0.1": ("mixed", "128", "--max-kl", "0.1"),
    "edgespec mixed, 103 MB": ("mixed", "128", "--target-size", "103000000"),  # as many as llama.cpp's Q4_K_M of SmolLM2-135M
    "edgespec int4, blocks of 32, search": ("int4", "32", "--method", "search"),
    "edgespec int4, blocks of 32, rtn": ("int4", "32", "--method", "rtn"),
    "edgespec int8": ("int8", "32"),
}
GENAI: dict[str, tuple[int, int, str]] = {
    "onnxruntime-genai int4 default, blocks of 32": (4, 32, "default"),
    "onnxruntime-genai int4 rtn, blocks of 32": (4, 32, "rtn"),
    "onnxruntime-genai int4 k_quant, blocks of 32": (4, 32, "k_quant"),
    "onnxruntime-genai int4 k_quant_mixed, blocks of 32": (4, 32, "k_quant_mixed"),
    "onnxruntime-genai int4 k_quant, blocks of 128": (4, 128, "k_quant"),
    "onnxruntime-genai int8, blocks of 32": (8, 32, "default"),
}
OPENVINO: dict[str, tuple[int, str]] = {
    "openvino int4, groups of 32, default": (4, "default"),
    "openvino int4, groups of 32, f32": (4, "f32"),
    "openvino int8, default": (8, "default"),
    "openvino int8, f32": (8, "f32"),
}
LLAMA_CPP = {f"llama.cpp {kind}": kind for kind in ("F32", "Q4_K_M", "Q4_K_S", "Q4_0", "Q8_0")}


def score_of(name: str, gguf: Path, folder: Path, given: dict[str, Path]) -> Score:
    """Any row of the table, made if need be."""
    if name in given:
        return bundle_score(given[name])
    if name in BUNDLES:
        weights, block, *more = BUNDLES[name]
        return bundle_score(models.edgespec_bundle(gguf, folder, weights, int(block), *more))
    if name in GENAI:
        return genai_score(models.genai_model(models.float_checkpoint(gguf, folder), folder, *GENAI[name]))
    if name in OPENVINO:
        bits, precision = OPENVINO[name]
        return openvino_score(models.openvino_model(models.float_checkpoint(gguf, folder), folder, bits, 32), folder, precision)
    kind = LLAMA_CPP[name]
    return llama_cpp_score(models.float_gguf(gguf, folder), folder, None if kind == "F32" else kind)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("bundles", nargs="*", metavar="NAME=BUNDLE", help="More bundles of the same weights.")
    parser.add_argument("--only", action="append", help="Rows whose name contains this; may be repeated.")
    parser.add_argument("--folder", type=Path, default=cache_folder() / "benchmarks")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    given = {name: Path(path) for name, _, path in (bundle.partition("=") for bundle in args.bundles)}
    held = Held(args.gguf)
    print(f"{sum(map(len, held.texts))} tokens\n\n| model | MB | KL | top-1 | perplexity |\n|---|---|---|---|---|", flush=True)
    rows = (*given, *BUNDLES, *GENAI, *OPENVINO, *LLAMA_CPP)
    names = [name for name in rows if not args.only or any(part in name for part in args.only)]
    for position, name in enumerate(names):
        try:
            found, size = held.compare(score_of(name, args.gguf, args.folder, given))
        except Unavailable as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        if position == 0:
            print(f"| float | | 0 | 1 | {found.original_perplexity:.3f} |")
        print(f"| {name} | {size / 1e6:.1f} | {found.kl:.4f} | {found.top1:.3f} | {found.perplexity:.3f} |", flush=True)


if __name__ == "__main__":
    main()
