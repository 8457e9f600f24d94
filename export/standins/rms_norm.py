"""RMSNorm (Zhang and Sennrich 2019) as one ``RMSNorm`` operator.

transformers has it under many names and in two forms: ``weight * norm(x)`` and, in Gemma, ``(1 + weight) * norm(x)``.
Which one a module computes, and with which epsilon, is found by running it.
"""

from __future__ import annotations

import types

import torch
from torch import nn

from edgespec.export.standins.base import StandIn, with_values
from edgespec.export.trace.dialect import emit

TOLERANCE = 1e-5


class RmsNormStandIn(StandIn):
    def matches(self, module: nn.Module) -> bool:
        return _form(module) is not None

    def install(self, module: nn.Module) -> None:
        form = _form(module)
        assert form is not None
        offset, epsilon = form

        def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
            weight = self._parameters["weight"]
            assert weight is not None
            return emit("RMSNorm", (x, weight + offset if offset else weight), x.shape, epsilon=epsilon)

        module.forward = types.MethodType(forward, module)


def _form(module: nn.Module) -> tuple[float, float] | None:
    """``(offset, epsilon)`` so that the module computes ``(weight + offset) * x / sqrt(mean(x²) + epsilon)``, or None."""
    if set(module._parameters) != {"weight"} or any(True for _ in module.children()) or isinstance(module, (nn.Linear, nn.Embedding)):
        return None
    weight = module._parameters["weight"]
    if weight is None or weight.dim() != 1:
        return None
    generator = torch.Generator().manual_seed(0)
    width = weight.shape[0]
    values = torch.rand(width, generator=generator)
    # Rows of very different size: in the smallest, epsilon decides the result.
    x = torch.randn(3, width, generator=generator) * torch.tensor([[1.0], [1e-2], [1e-4]])
    try:
        found = with_values(module, {"weight": values}).forward(x)
    except Exception:  # not a norm: some other module with one vector of weights
        return None
    if not isinstance(found, torch.Tensor) or found.shape != x.shape:
        return None
    for epsilon in sorted({float(value) for value in vars(module).values() if isinstance(value, float)}):
        normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon)
        for offset in (0.0, 1.0):
            if torch.allclose(found, (values + offset) * normed, atol=TOLERANCE, rtol=TOLERANCE):
                return offset, epsilon
    return None
