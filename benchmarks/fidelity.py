"""How far quantised models are from the float one: bytes, KL, top-1 agreement and perplexity, edgespec beside its peers.

    python -m benchmarks.fidelity GGUF [--only TEXT ...] [--folder FOLDER] [NAME=BUNDLE ...]

The GGUF's weights, as float32, are the original; every engine quantises these with its own tool and is run by itself, with the token
sequences of the project's held text, which nothing is fitted to. Models are made once and kept in FOLDER. A Markdown table comes out.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnxruntime as ort

from benchmarks.peers import environments
from edgespec.cache import cache_folder
from edgespec.export import parity
from edgespec.export.checkpoint import open_checkpoint
from edgespec.export.corpus import HELD
from edgespec.export.reference import Reference
from edgespec.export.tokenizer import Tokenizer
from edgespec.export.trace.model import build_empty
from edgespec.manifest import read_manifest
from edgespec.runtime.model import Model
from edgespec.runtime.session import DEFAULT_PROVIDERS, default_threads

Score = Callable[[int], np.ndarray]
"""Logits [n, V] of a text by its number."""
Texts = list[list[int]]
Make = Callable[[Path, Path], Path]
"""From the GGUF and the folder to a model."""

BUNDLES: dict[str, tuple[str, ...]] = {
    "edgespec int4, blocks of 32": ("int4", "32"),
    "edgespec int4, blocks of 128": ("int4", "128"),
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
}
LLAMA_CPP = {f"llama.cpp {kind}": kind for kind in ("F32", "Q4_K_M", "Q4_K_S", "Q4_0", "Q8_0")}


def bundle_scores(folder: Path, texts: Texts) -> tuple[Score, int]:
    """A bundle's target and the bytes of its weights."""
    spec = read_manifest(folder).target
    model = Model(folder / spec.graph, spec, capacity=512, threads=default_threads(), providers=DEFAULT_PROVIDERS)
    return lambda index: parity.prefill(model, texts[index]), sum((folder / name).stat().st_size for name in spec.weights)


def genai_scores(folder: Path, texts: Texts) -> tuple[Score, int]:
    """A model of onnxruntime-genai's builder, run by ONNX Runtime itself with an empty past."""
    head_dim = json.loads((folder / "genai_config.json").read_text())["model"]["decoder"]["head_size"]
    session = ort.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])

    def score(index: int) -> np.ndarray:
        ids, feeds = texts[index], {}
        for value in session.get_inputs():
            if value.name == "input_ids":
                feeds[value.name] = np.array([ids], np.int64)
            elif value.name == "attention_mask":
                feeds[value.name] = np.ones((1, len(ids)), np.int64)
            elif value.name == "position_ids":
                feeds[value.name] = np.arange(len(ids), dtype=np.int64)[None]
            else:
                feeds[value.name] = np.zeros((1, value.shape[1], 0, head_dim), np.float32)
        logits: np.ndarray = session.run(["logits"], feeds)[0][0]
        return logits

    return score, (folder / "model.onnx.data").stat().st_size


@contextmanager
def llama_cpp_scores(kind: str, gguf: Path, folder: Path, texts: Texts) -> Iterator[tuple[Score, int]]:
    """llama.cpp's own quantisation to ``kind``, run by llama.cpp. The bytes are the file's."""
    source, output = environments.float_gguf(gguf, folder), folder / f"llama-cpp-{kind}.gguf"
    with tempfile.TemporaryDirectory() as logits:
        listing = Path(logits) / "texts.json"
        listing.write_text(json.dumps(texts))
        python = environments.environment("llama-cpp-python", folder)
        script = Path(__file__).parent / "peers" / "llama_cpp_logits.py"
        environments.quiet(str(python), str(script), str(source), kind, str(output), str(listing), logits)
        size = (source if kind == "F32" else output).stat().st_size
        yield lambda index: np.load(Path(logits) / f"{index}.npy"), size


@contextmanager
def scores(name: str, gguf: Path, folder: Path, texts: Texts, given: dict[str, Path]) -> Iterator[tuple[Score, int]]:
    """Any row of the table, made if need be."""
    if name in given:
        yield bundle_scores(given[name], texts)
    elif name in BUNDLES:
        weights, block, *more = BUNDLES[name]
        yield bundle_scores(environments.edgespec_bundle(gguf, folder, weights, int(block), *more), texts)
    elif name in GENAI:
        yield genai_scores(environments.genai_model(environments.float_checkpoint(gguf, folder), folder, *GENAI[name]), texts)
    else:
        with llama_cpp_scores(LLAMA_CPP[name], gguf, folder, texts) as found:
            yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("bundles", nargs="*", metavar="NAME=BUNDLE", help="More bundles of the same weights.")
    parser.add_argument("--only", action="append", help="Rows whose name contains this; may be repeated.")
    parser.add_argument("--folder", type=Path, default=cache_folder() / "benchmarks")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    given = {name: Path(path) for name, _, path in (bundle.partition("=") for bundle in args.bundles)}
    checkpoint = open_checkpoint(str(args.gguf))
    checkpoint.bind(build_empty(checkpoint.config_copy()))
    tokenizer = Tokenizer(checkpoint)
    texts = [tokenizer.encode(text) for text in HELD]
    reference = Reference(checkpoint, checkpoint.config_copy(), texts)
    print(f"{sum(map(len, texts))} tokens\n\n| model | MB | KL | top-1 | perplexity |\n|---|---|---|---|---|", flush=True)
    names = [name for name in (*given, *BUNDLES, *GENAI, *LLAMA_CPP) if not args.only or any(part in name for part in args.only)]
    for position, name in enumerate(names):
        try:
            with scores(name, args.gguf, args.folder, texts, given) as (score, size):
                parts = [parity.compare(reference.logits(index), score(index), np.array(ids[1:])) for index, ids in enumerate(texts)]
        except environments.Unavailable as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        found = parity.mean(parts)
        if position == 0:
            print(f"| float | | 0 | 1 | {found.original_perplexity:.3f} |")
        print(f"| {name} | {size / 1e6:.1f} | {found.kl:.4f} | {found.top1:.3f} | {found.perplexity:.3f} |", flush=True)


if __name__ == "__main__":
    main()
