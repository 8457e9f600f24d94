"""A small language model of the target's own architecture, to train from some of the target's layers.

It keeps the target's embedding and head as they are. While it drafts it sees tokens only, so what it says in step s behind row j is what it
says in step 0 behind row j + s: one step is trained, and all are judged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import nn
from transformers import AutoTokenizer

from edgespec.export.checkpoint import Checkpoint
from edgespec.export.distill.config import DistillConfig
from edgespec.export.distill.students.base import Student, stored
from edgespec.export.heads.base import TargetShape
from edgespec.export.reference import shallow_config
from edgespec.export.trace.model import build_empty, decoder_layers


class LmStudent(Student):
    kind = "lm"
    whole_vocabulary = True
    trained_steps = 1

    def __init__(self, shape: TargetShape, ids: np.ndarray, config: DistillConfig) -> None:
        super().__init__(shape, ids, config)
        layers = min(config.layers, shape.layers)
        self._trust_remote_code = config.trust_remote_code
        self.model = build_empty(shallow_config(shape.checkpoint.config_copy(), layers), "eager")
        _fill(self.model, shape.checkpoint, spread_over(shape.layers, layers))
        self.model.requires_grad_(False)
        decoder_layers(self.model).requires_grad_(True)

    @staticmethod
    def taps(shape: TargetShape, config: DistillConfig) -> tuple[str, ...]:  # noqa: ARG004 - it reads tokens only
        return ()

    def hidden(self, tokens: torch.Tensor, features: torch.Tensor) -> list[torch.Tensor]:
        rows = features.shape[1]
        found = self.model.get_decoder()(input_ids=tokens, use_cache=False).last_hidden_state
        return [found[:, 1 + step : 1 + step + rows] for step in range(self.steps)]

    def step_weights(self) -> int:
        layers = sum(parameter.numel() for parameter in decoder_layers(self.model).parameters())
        return layers + self.shape.vocab_size * self.shape.hidden_size

    def write(self, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(
            save({name: stored(parameter) for name, parameter in self.model.named_parameters()}, {"format": "pt"})
        )
        settings: Any = self.model.config
        settings.dtype = torch.float16
        settings.architectures = [type(self.model).__name__]
        settings.save_pretrained(folder)
        load = self.shape.checkpoint.origin.load
        load(AutoTokenizer.from_pretrained, trust_remote_code=self._trust_remote_code).save_pretrained(folder)


def spread_over(total: int, count: int) -> list[int]:
    """``count`` of ``total`` layers: the first, the last, and others evenly between."""
    return sorted({round(place) for place in np.linspace(0, total - 1, count).tolist()}) if count > 1 else [0]


def _fill(model: Any, checkpoint: Checkpoint, sources: list[int]) -> None:
    """Give the parameters the target's values, those of layer i from the target's layer ``sources[i]`` where its tensors have the same
    shapes, else from layer i."""
    made: dict[int, nn.Parameter] = {}
    layers = decoder_layers(model)
    prefix = next(name for name, module in model.named_modules() if module is layers)
    for name, parameter in model.named_parameters():
        values = None
        if name.startswith(f"{prefix}."):
            index, _, rest = name.removeprefix(f"{prefix}.").partition(".")
            other = f"{prefix}.{sources[int(index)]}.{rest}"
            values = checkpoint.read_float(other) if other in checkpoint else None
        if values is None or values.shape != parameter.shape:
            values = checkpoint.read_float(name)
        made[id(parameter)] = nn.Parameter(values.clone())
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = made[id(parameter)]
