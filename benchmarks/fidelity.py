"""How far quantised models are from the float one: KL, top-1 agreement and perplexity on the project's held text, and bytes.

    python benchmarks/fidelity.py CHECKPOINT NAME=FOLDER ...

CHECKPOINT holds the float weights. A FOLDER is a bundle of edgespec, or a model of onnxruntime-genai's builder (model.onnx,
model.onnx.data). Rows of a Markdown table come out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort

from edgespec.export import parity
from edgespec.export.checkpoint import open_checkpoint
from edgespec.export.corpus import HELD
from edgespec.export.reference import Reference
from edgespec.export.tokenizer import Tokenizer
from edgespec.export.trace.model import build_empty
from edgespec.manifest import MANIFEST_NAME, read_manifest
from edgespec.runtime.model import Model
from edgespec.runtime.session import DEFAULT_PROVIDERS, default_threads

Score = Callable[[list[int]], np.ndarray]
"""Logits [n, V] of a text."""


def bundle_scores(folder: Path) -> tuple[Score, int]:
    """A bundle's target and the bytes of its weights."""
    spec = read_manifest(folder).target
    model = Model(folder / spec.graph, spec, capacity=512, threads=default_threads(), providers=DEFAULT_PROVIDERS)
    return lambda ids: parity.prefill(model, ids), sum((folder / name).stat().st_size for name in spec.weights)


def genai_scores(folder: Path) -> tuple[Score, int]:
    """A model of onnxruntime-genai's builder, run by ONNX Runtime itself with an empty past."""
    head_dim = json.loads((folder / "genai_config.json").read_text())["model"]["decoder"]["head_size"]
    session = ort.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])

    def score(ids: list[int]) -> np.ndarray:
        feeds: dict[str, np.ndarray] = {}
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("models", nargs="+", metavar="NAME=FOLDER")
    args = parser.parse_args()
    checkpoint = open_checkpoint(args.checkpoint)
    config = checkpoint.config_copy()
    checkpoint.bind(build_empty(checkpoint.config_copy()))
    tokenizer = Tokenizer(checkpoint)
    texts = [tokenizer.encode(text) for text in HELD]
    reference = Reference(checkpoint, config, texts)
    print(f"{sum(map(len, texts))} tokens\n\n| model | MB | KL | top-1 | perplexity |\n|---|---|---|---|---|")
    for position, model in enumerate(args.models):
        name, _, path = model.partition("=")
        score, size = (bundle_scores if (Path(path) / MANIFEST_NAME).exists() else genai_scores)(Path(path))
        parts = [parity.compare(reference.logits(index), score(ids), np.array(ids[1:])) for index, ids in enumerate(texts)]
        found = parity.mean(parts)
        if position == 0:
            print(f"| float | | 0 | 1 | {found.original_perplexity:.3f} |")
        print(f"| {name} | {size / 1e6:.1f} | {found.kl:.4f} | {found.top1:.3f} | {found.perplexity:.3f} |", flush=True)


if __name__ == "__main__":
    main()
