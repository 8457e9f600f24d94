"""What all drafts that can be trained have in common: what they read, the loss, and when a guess is right."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from edgespec.export.distill.batches import Batch
from edgespec.export.distill.config import DistillConfig
from edgespec.export.heads.base import TargetShape

DECAY = 0.8  # weight of a step's loss over the one before: later ones are asked for less often
CHUNK = 1024  # rows whose scores over the vocabulary are in memory at a time
SPREAD = 0.02  # of random weights


class Student(nn.Module, abc.ABC):
    """A draft.

    Args:
        shape: the target's matrices.
        ids: the target's id [Vd] of each of the draft's tokens.
        config: the distillation.
    """

    kind: ClassVar[str]
    whole_vocabulary: ClassVar[bool] = False
    """Its layout scores all of the target's tokens."""
    trained_steps: ClassVar[int | None] = None
    """Steps that have a loss, all if None."""

    def __init__(self, shape: TargetShape, ids: np.ndarray, config: DistillConfig) -> None:
        super().__init__()
        self.shape = shape
        self.ids = torch.from_numpy(ids)
        self.steps = config.steps
        self.config = config
        rows = shape.checkpoint.read_float(shape.head)[self.ids]
        self.head = nn.Parameter(rows, requires_grad=config.head == "trained")
        self.random = torch.Generator().manual_seed(config.seed)

    @staticmethod
    @abc.abstractmethod
    def taps(shape: TargetShape, config: DistillConfig) -> tuple[str, ...]:
        """The hidden states of the target that it reads."""

    @abc.abstractmethod
    def hidden(self, tokens: torch.Tensor, features: torch.Tensor) -> list[torch.Tensor]:
        """What the head is applied to in each of the K steps, [B, A, H] each, for tokens [B, A + K] and features [B, A, F]."""

    @abc.abstractmethod
    def write(self, folder: Path) -> None:
        """Write tensors and configuration in the public layout."""

    @abc.abstractmethod
    def step_weights(self) -> int:
        """Weights that a draft step reads, for a guess at its cost."""

    def forward(self, batch: Batch, counts: torch.Tensor) -> torch.Tensor:
        """The loss: cross-entropy with the target's distribution over the draft's tokens, a mean over the rows of each step.

        Args:
            batch: with labels.
            counts: float [K], rows with labels in each step of the whole batch, of which this may be a part.
        """
        weights = torch.tensor([DECAY**step for step in range(self.trained_steps or self.steps)])
        head = self._head()
        loss = batch.p.new_zeros(())
        for step, hidden in enumerate(self.hidden(batch.tokens, batch.features)[: len(weights)]):
            labels, p = self._labels(batch, step)
            rows = p.sum(-1) > 0
            share = weights[step] / weights.sum() / counts[step].clamp(min=1)
            pieces = (torch.split(values[rows], CHUNK) for values in (hidden, labels, p))
            for chosen, ids, wanted in zip(*pieces, strict=True):
                log_q = (chosen @ head).log_softmax(-1).gather(-1, ids.clamp(min=0))
                loss = loss - share * (wanted * log_q).sum()
        return loss

    def counts(self, batch: Batch) -> torch.Tensor:
        """Rows of each step that have labels, float [K]."""
        return torch.stack([(self._labels(batch, step)[1].sum(-1) > 0).sum() for step in range(self.steps)]).float()

    @torch.no_grad()
    def right(self, batch: Batch) -> torch.Tensor:
        """Whether the draft's guess is the target's likeliest token, bool [K, B, A]; false where there is no label."""
        found = torch.zeros(self.steps, *batch.features.shape[:2], dtype=torch.bool, device=batch.features.device)
        head = self._head()
        for step, hidden in enumerate(self.hidden(batch.tokens, batch.features)):
            labels, _ = self._labels(batch, step)
            rows = self._shifted(batch.labelled, step) & (labels[..., 0] >= 0)
            guesses = [(part @ head).argmax(-1) for part in torch.split(hidden[rows], CHUNK)]
            found[step][rows] = torch.cat([*guesses, labels.new_zeros(0)]) == labels[rows][:, 0]
        return found

    def _head(self) -> torch.Tensor:
        """The last matrix [H, Vd] in the numbers that products are computed in: converted once, and not for every chunk of rows."""
        kind = self.head.device.type
        return self.head.T.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else self.head.T

    def _labels(self, batch: Batch, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._shifted(batch.labels, step), self._shifted(batch.p, step)

    def _shifted(self, values: torch.Tensor, step: int) -> torch.Tensor:
        """What stands behind the token that row j reads in a step, for A rows; steps reach beyond the end, where nothing is."""
        rows = values.shape[1] - self.steps
        return values[:, 1 + step : 1 + step + rows]

    def trained(self) -> dict[str, torch.Tensor]:
        """The parameters that training changes."""
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}

    def load_trained(self, state: Mapping[str, torch.Tensor]) -> None:
        """Set them.

        Raises:
            ValueError: they are another draft's.
        """
        own = self.trained()
        if set(own) != set(state) or any(own[name].shape != tensor.shape for name, tensor in state.items()):
            raise ValueError("its tensors are another draft's")
        with torch.no_grad():
            for name, tensor in state.items():
                own[name].copy_(tensor)

    def noise(self, *shape: int, spread: float = SPREAD) -> torch.Tensor:
        """Random numbers that depend on the seed alone."""
        return spread * torch.randn(*shape, generator=self.random)


def stored(tensor: torch.Tensor) -> torch.Tensor:
    """As drafts are stored."""
    return tensor.detach().to("cpu", torch.float16).contiguous().clone()


def common_settings(student: Student) -> dict[str, Any]:
    """What every configuration says."""
    return {"base_model_name_or_path": student.shape.checkpoint.origin.name, "torch_dtype": "float16"}
