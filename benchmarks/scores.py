"""Logits of every engine for the project's held text, and how far they are from the float model's.

A ``Score`` is a context manager over the texts; inside it there are the logits of each text by its number, and the bytes of the weights.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import onnxruntime as ort

from benchmarks.peers import environments
from edgespec.export import parity
from edgespec.export.checkpoint import open_checkpoint
from edgespec.export.corpus import HELD
from edgespec.export.reference import Reference
from edgespec.export.tokenizer import Tokenizer
from edgespec.export.trace.model import build_empty
from edgespec.manifest import Fidelity, read_manifest
from edgespec.runtime.cores import default_threads
from edgespec.runtime.models.model import Model
from edgespec.runtime.providers.session import DEFAULT_PROVIDERS

Texts = list[list[int]]
Logits = Callable[[int], np.ndarray]
"""Logits [n, V] of a text by its number."""
Score = Callable[[Texts], AbstractContextManager[tuple[Logits, int]]]

PEERS = Path(__file__).parent / "peers"


class Held:
    """The held text as token ids, and the float model's logits for it.

    Args:
        checkpoint: a GGUF or another checkpoint, whose weights in float are the original.
    """

    def __init__(self, checkpoint: Path) -> None:
        opened = open_checkpoint(str(checkpoint))
        opened.bind(build_empty(opened.config_copy()))
        tokenizer = Tokenizer(opened)
        self.texts: Texts = [tokenizer.encode(text) for text in HELD]
        self._reference = Reference(opened, opened.config_copy(), self.texts)

    def compare(self, score: Score) -> tuple[Fidelity, int]:
        """Fidelity of an engine's logits, and the bytes of its weights."""
        with score(self.texts) as (logits, size):
            parts = [
                parity.compare(self._reference.logits(index), logits(index), np.array(ids[1:])) for index, ids in enumerate(self.texts)
            ]
        return parity.mean(parts), size


def bundle_score(folder: Path) -> Score:
    """A bundle's target."""

    @contextmanager
    def score(texts: Texts) -> Iterator[tuple[Logits, int]]:
        spec = read_manifest(folder).target
        model = Model(folder / spec.graph, spec, capacity=512, threads=default_threads(), providers=DEFAULT_PROVIDERS)
        yield lambda index: parity.prefill(model, texts[index]), sum((folder / name).stat().st_size for name in spec.weights)

    return score


def genai_score(folder: Path) -> Score:
    """A model of onnxruntime-genai's builder, run by ONNX Runtime itself."""
    head_dim = json.loads((folder / "genai_config.json").read_text())["model"]["decoder"]["head_size"]
    return _onnx_score(folder / "model.onnx", folder / "model.onnx.data", head_dim)


def optimum_onnx_score(folder: Path) -> Score:
    """A model that optimum-onnx has quantised."""
    graph = folder / "model_quantized.onnx"
    return _onnx_score(graph, graph, json.loads((folder / "config.json").read_text())["head_dim"])


def _onnx_score(graph: Path, weights: Path, head_dim: int) -> Score:
    """A graph with a cache that grows, which is empty here."""

    @contextmanager
    def score(texts: Texts) -> Iterator[tuple[Logits, int]]:
        session = ort.InferenceSession(str(graph), providers=["CPUExecutionProvider"])

        def logits(index: int) -> np.ndarray:
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
            found: np.ndarray = session.run(["logits"], feeds)[0][0]
            return found

        yield logits, weights.stat().st_size

    return score


def openvino_score(model: Path, folder: Path, precision: str = "default") -> Score:
    """A model of optimum-intel, run by OpenVINO with the settings that openvino-genai has by default, or in ``f32``."""
    return _in_its_environment("openvino-genai", folder, "openvino_logits.py", [str(model), precision], model / "openvino_model.bin")


def llama_cpp_score(source: Path, folder: Path, kind: str | None = None) -> Score:
    """A GGUF file as it is, or in llama.cpp's own quantisation to ``kind`` (a name of llama.cpp's), run by llama.cpp."""
    output = folder / f"llama-cpp-{kind}.gguf" if kind else source
    return _in_its_environment("llama-cpp-python", folder, "llama_cpp_logits.py", [str(source), kind or "as-it-is", str(output)], output)


def _in_its_environment(peer: str, folder: Path, script: str, arguments: list[str], weights: Path) -> Score:
    """A script among the peers that is given the texts as JSON and a folder for ``N.npy``."""

    @contextmanager
    def score(texts: Texts) -> Iterator[tuple[Logits, int]]:
        python = environments.environment(peer, folder)
        with tempfile.TemporaryDirectory() as found:
            listing = Path(found) / "texts.json"
            listing.write_text(json.dumps(texts))
            environments.quiet(str(python), str(PEERS / script), *arguments, str(listing), found)
            yield lambda index: np.load(Path(found) / f"{index}.npy"), weights.stat().st_size

    return score
