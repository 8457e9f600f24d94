"""The engines that are compared: what each needs, and the commands of its workers."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.peers import environments

HERE = Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Setting:
    """What all engines are given: the weights, how they are stored, and where the peers' environments are kept."""

    gguf: Path
    folder: Path
    weights: str
    block: int
    threads: int

    @property
    def bits(self) -> int:
        return int(self.weights.removeprefix("int"))

    @property
    def checkpoint(self) -> Path:
        return environments.float_checkpoint(self.gguf, self.folder)


def _edgespec(setting: Setting) -> list[list[str]]:
    bundle = environments.edgespec_bundle(setting.gguf, setting.folder, setting.weights, setting.block)
    return [[sys.executable, str(HERE / "run_edgespec.py"), str(bundle), str(setting.threads)]]


def _genai(setting: Setting) -> list[list[str]]:
    model = environments.genai_model(setting.checkpoint, setting.folder, setting.bits, setting.block)
    python = environments.environment("onnxruntime-genai", setting.folder)
    return [[str(python), str(HERE / "run_onnxruntime_genai.py"), str(model), str(setting.threads)]]


def _llama_cpp(setting: Setting) -> list[list[str]]:
    if setting.bits != 4:
        raise environments.Unavailable("the GGUF has 4-bit weights")
    python = environments.environment("llama.cpp", setting.folder)
    return [[str(python), str(HERE / "run_xllamacpp.py"), str(setting.gguf), str(setting.threads), mode] for mode in ("plain", "n-gram")]


def _openvino(setting: Setting) -> list[list[str]]:
    model = environments.openvino_model(setting.checkpoint, setting.folder, setting.bits, setting.block)
    python = environments.environment("openvino-genai", setting.folder)
    return [[str(python), str(HERE / "run_openvino_genai.py"), str(model), str(setting.threads), mode] for mode in ("plain", "n-gram")]


def _transformers(setting: Setting) -> list[list[str]]:
    return [[sys.executable, str(HERE / "run_transformers.py"), str(setting.checkpoint), str(setting.threads)]]


ENGINES: dict[str, Callable[[Setting], list[list[str]]]] = {
    "edgespec": _edgespec,
    "onnxruntime-genai": _genai,
    "llama.cpp": _llama_cpp,
    "openvino-genai": _openvino,
    "transformers": _transformers,
}
"""The commands of an engine's workers, by name; making them installs and converts what is missing. An engine whose modes are models of
their own has a worker for each, so that peak memory is that of one."""
