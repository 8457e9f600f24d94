"""The engines that are compared: the processes of each, what they load, and how their logits can be had."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.peers import models
from benchmarks.peers.edgespec_modes import ALONE
from benchmarks.peers.environments import Unavailable, environment
from benchmarks.peers.worker import DRAFTED
from benchmarks.scores import Score, bundle_score, genai_score, llama_cpp_score, openvino_score, optimum_onnx_score

HERE = Path(__file__).parent
WITH_DRAFT: dict[str, dict[str, object]] = {
    "draft": {"drafter": "draft"},
    f"draft of {DRAFTED}": {"drafter": "draft", "draft_length": DRAFTED},
    "auto with a draft": {},
}
"""Modes of edgespec with a draft model."""
LIGHT_BLOCK = 64
LIGHT = f"symmetric, blocks of {LIGHT_BLOCK}"
"""Our second bundle of 4 bits has larger blocks and no zero points: still nearer to the float model than the peers' own 4 bits."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """What all engines are given: the weights, how they are stored, the draft, and where the peers' environments are kept."""

    gguf: Path
    folder: Path
    bits: int
    block: int
    threads: int
    draft_layers: int
    """The draft is the target's own first layers, so many; 0 for no drafts."""

    @property
    def checkpoint(self) -> Path:
        return models.float_checkpoint(self.gguf, self.folder)

    @property
    def draft_checkpoint(self) -> Path:
        return models.first_layers(self.checkpoint, self.folder, self.draft_layers)


@dataclasses.dataclass(frozen=True)
class Part:
    """A process of an engine; it has one or several modes.

    Attributes:
        command: starts it.
        loads: models that it loads.
        score: logits of its target, None where the weights are the float ones.
        arithmetic: tells apart the parts of an engine whose logits differ.
    """

    command: list[str]
    loads: tuple[Path, ...]
    score: Score | None
    arithmetic: str = "default"


def _edgespec(*, pair: bool) -> Callable[[Setting], Part]:
    def part(setting: Setting) -> Part:
        more = ("--draft", f"layers:{setting.draft_layers}") if pair else ()
        bundle = models.edgespec_bundle(setting.gguf, setting.folder, f"int{setting.bits}", setting.block, *more)
        return _running(bundle, setting, WITH_DRAFT if pair else ALONE)

    return part


def _edgespec_light(setting: Setting) -> Part:
    if setting.bits != 4:
        raise Unavailable("it is a form of 4 bits")
    bundle = models.edgespec_bundle(setting.gguf, setting.folder, "int4", LIGHT_BLOCK, "--symmetric")
    return _running(bundle, setting, {f"{mode}, {LIGHT}": options for mode, options in ALONE.items()}, LIGHT)


def _running(bundle: Path, setting: Setting, modes: Mapping[str, object], arithmetic: str = "default") -> Part:
    command = [sys.executable, str(HERE / "run_edgespec.py"), str(bundle), str(setting.threads), json.dumps(modes)]
    return Part(command, (bundle,), bundle_score(bundle), arithmetic)


def _genai(*, pair: bool) -> Callable[[Setting], Part]:
    def part(setting: Setting) -> Part:
        target = loaded = models.genai_model(setting.checkpoint, setting.folder, setting.bits, setting.block)
        if pair:
            draft = models.genai_model(setting.draft_checkpoint, setting.folder, setting.bits, setting.block)
            loaded = models.genai_pair(target, draft)
        python = environment("onnxruntime-genai", setting.folder)
        command = [str(python), str(HERE / "run_onnxruntime_genai.py"), str(loaded), str(setting.threads)]
        return Part(command, (loaded,), genai_score(target))

    return part


def _llama_cpp(mode: str) -> Callable[[Setting], Part]:
    def part(setting: Setting) -> Part:
        kind = {4: None, 8: "Q8_0"}[setting.bits]  # the GGUF has 4 bits
        name = setting.gguf.stem if kind is None else kind
        target = setting.gguf if kind is None else models.rewritten_gguf(setting.gguf, setting.folder / f"{name}.gguf", kind)
        loads = [target]
        if mode == "draft":
            layers = setting.draft_layers
            loads.append(models.rewritten_gguf(target, setting.folder / f"{name}-layers{layers}.gguf", layers=layers))
        python = environment("llama.cpp", setting.folder)
        command = [str(python), str(HERE / "run_xllamacpp.py"), str(target), str(setting.threads), mode, *map(str, loads[1:])]
        return Part(command, tuple(loads), llama_cpp_score(target, setting.folder))

    return part


def _openvino(mode: str, arithmetic: str) -> Callable[[Setting], Part]:
    def part(setting: Setting) -> Part:
        target = models.openvino_model(setting.checkpoint, setting.folder, setting.bits, setting.block)
        loads = [target]
        if mode == "draft":
            loads.append(models.openvino_model(setting.draft_checkpoint, setting.folder, setting.bits, setting.block))
        python = environment("openvino-genai", setting.folder)
        command = [str(python), str(HERE / "run_openvino_genai.py"), str(target), str(setting.threads), mode, arithmetic]
        return Part([*command, *map(str, loads[1:])], tuple(loads), openvino_score(target, setting.folder, arithmetic), arithmetic)

    return part


def _transformers(*, pair: bool) -> Callable[[Setting], Part]:
    def part(setting: Setting) -> Part:
        loads = (setting.checkpoint, setting.draft_checkpoint) if pair else (setting.checkpoint,)
        checkpoint, *draft = map(str, loads)
        return Part([sys.executable, str(HERE / "run_transformers.py"), checkpoint, str(setting.threads), *draft], loads, None)

    return part


def _optimum_onnx(*, pair: bool) -> Callable[[Setting], Part]:
    def part(setting: Setting) -> Part:
        if setting.bits != 8:
            raise Unavailable("it quantises to 8 bits only")
        target = models.optimum_onnx_model(setting.checkpoint, setting.folder)
        loads = (target, models.optimum_onnx_model(setting.draft_checkpoint, setting.folder)) if pair else (target,)
        model, *draft = map(str, loads)
        python = environment("optimum-onnx", setting.folder)
        return Part(
            [str(python), str(HERE / "run_optimum_onnx.py"), model, str(setting.threads), *draft], loads, optimum_onnx_score(target)
        )

    return part


ENGINES: dict[str, dict[str, Callable[[Setting], Part]]] = {
    "edgespec": {"alone": _edgespec(pair=False), "light": _edgespec_light, "draft": _edgespec(pair=True)},
    "onnxruntime-genai": {"alone": _genai(pair=False), "draft": _genai(pair=True)},
    "llama.cpp": {mode: _llama_cpp(mode) for mode in ("plain", "n-gram", "draft")},
    "openvino-genai": {
        "plain": _openvino("plain", "default"),
        "n-gram": _openvino("n-gram", "default"),
        "draft": _openvino("draft", "default"),
        "plain, f32": _openvino("plain", "f32"),
        "n-gram, f32": _openvino("n-gram", "f32"),
        "draft, f32": _openvino("draft", "f32"),
    },
    "optimum-onnx": {"alone": _optimum_onnx(pair=False), "draft": _optimum_onnx(pair=True)},
    "transformers": {"alone": _transformers(pair=False), "draft": _transformers(pair=True)},
}
"""By engine, its processes by name; making one installs and converts what is missing. Modes that load other models, or that are chosen
when the model is loaded, have a process of their own, so that peak memory is that of one. A name with "draft" needs the draft."""
