"""``nn.Linear`` as one ``Linear`` operator, so that passes can merge and quantise projections by their weight's name."""

from __future__ import annotations

import types

import torch
from torch import nn

from edgespec.export.standins.base import StandIn
from edgespec.export.trace.dialect import emit


class LinearStandIn(StandIn):
    def matches(self, module: nn.Module) -> bool:
        return type(module).forward is nn.Linear.forward

    def install(self, module: nn.Module) -> None:
        module.forward = types.MethodType(_forward, module)


def _forward(self: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    inputs = (x, self.weight) if self.bias is None else (x, self.weight, self.bias)
    return emit("Linear", inputs, (*x.shape[:-1], self.out_features))
