"""Layer normalisation without a bias, written out in a model's own code (Cohere), as torch's, which becomes one ONNX operator.

The weight may be one vector, or one for each head.
"""

from __future__ import annotations

import types

import torch
from torch import nn

from edgespec.export.standins.base import StandIn, with_values

TOLERANCE = 1e-5


class LayerNormStandIn(StandIn):
    def matches(self, module: nn.Module) -> bool:
        return _epsilon(module) is not None

    def install(self, module: nn.Module) -> None:
        epsilon = _epsilon(module)
        assert epsilon is not None

        def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
            weight = self._parameters["weight"]
            assert weight is not None
            width = weight.shape[-1:]
            if weight.dim() == 1:
                return nn.functional.layer_norm(x, width, weight, None, epsilon)
            return nn.functional.layer_norm(x, width, None, None, epsilon) * weight

        module.forward = types.MethodType(forward, module)


def _epsilon(module: nn.Module) -> float | None:
    """The epsilon with which the module computes ``weight * (x - mean(x)) / sqrt(var(x) + epsilon)``, or None."""
    if {name for name, value in module._parameters.items() if value is not None} != {"weight"} or any(True for _ in module.children()):
        return None
    weight = module._parameters["weight"]
    if weight is None or weight.dim() not in (1, 2) or isinstance(module, (nn.Linear, nn.Embedding)):
        return None
    numbers = sorted({float(value) for value in vars(module).values() if isinstance(value, float)})
    if not numbers:
        return None
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(weight.shape, generator=generator)
    # Rows of very different size: in the smallest, epsilon decides the result.
    sizes = torch.tensor([1.0, 1e-2, 1e-4]).reshape(3, *(1 for _ in weight.shape))
    x = torch.randn(3, *weight.shape, generator=generator) * sizes
    try:
        found = with_values(module, {"weight": values}).forward(x)
    except Exception:  # not a norm
        return None
    if not isinstance(found, torch.Tensor) or found.shape != x.shape:
        return None
    for epsilon in numbers:
        wanted = values * nn.functional.layer_norm(x, weight.shape[-1:], None, None, epsilon)
        if torch.allclose(found, wanted, atol=TOLERANCE, rtol=TOLERANCE):
            return epsilon
    return None
