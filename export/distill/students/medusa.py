"""Medusa heads (Cai et al. 2024) to train: head s sees the target's last hidden state and foretells the token s + 2 places on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch import nn
from torch.nn import functional

from edgespec.export.distill.config import DistillConfig
from edgespec.export.distill.students.base import Student, common_settings, stored
from edgespec.export.heads.base import TargetShape
from edgespec.export.passes.tap_features import LAST


class MedusaStudent(Student):
    kind = "medusa"
    whole_vocabulary = True

    def __init__(self, shape: TargetShape, ids: np.ndarray, config: DistillConfig) -> None:
        super().__init__(shape, ids, config)
        size = shape.hidden_size
        # Each head begins as the target's own, as the paper has it.
        self.weights = nn.ParameterList(torch.zeros(size, size) for _ in range(self.steps))
        self.biases = nn.ParameterList(torch.zeros(size) for _ in range(self.steps))

    @staticmethod
    def taps(shape: TargetShape, config: DistillConfig) -> tuple[str, ...]:  # noqa: ARG004 - heads of this kind read but one
        return (LAST,)

    def hidden(self, tokens: torch.Tensor, features: torch.Tensor) -> list[torch.Tensor]:  # noqa: ARG002 - they do not see tokens
        blocks = zip(self.weights, self.biases, strict=True)
        return [features + functional.silu(functional.linear(features, weight, bias)) for weight, bias in blocks]

    def step_weights(self) -> int:
        return self.shape.hidden_size * (self.shape.hidden_size + self.shape.vocab_size)

    def write(self, folder: Path) -> None:
        matrix = self.shape.checkpoint.read_float(self.shape.head).clone()
        matrix[self.ids] = self.head.detach().cpu()
        tensors = {}
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            tensors[f"{number}.0.linear.weight"] = stored(weight)
            tensors[f"{number}.0.linear.bias"] = stored(bias)
            tensors[f"{number}.1.weight"] = stored(matrix)
        (folder / "medusa_lm_head.safetensors").write_bytes(save(tensors))
        settings = {"medusa_num_heads": self.steps, "medusa_num_layers": 1, "vocab_size": self.shape.vocab_size, **common_settings(self)}
        (folder / "config.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")
