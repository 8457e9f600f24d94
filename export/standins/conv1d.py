"""A product with a matrix stored the other way round, ``x W + b`` with W ``[K, N]`` (GPT-2), as one ``Linear`` operator.

The transpose becomes part of how the weight is written, so that it merges and quantises like any other projection.
"""

from __future__ import annotations

import types

import torch
from torch import nn

from edgespec.export.standins.base import StandIn, with_values
from edgespec.export.trace.dialect import emit


class Conv1DStandIn(StandIn):
    def matches(self, module: nn.Module) -> bool:
        if set(module._parameters) != {"weight", "bias"} or any(True for _ in module.children()):
            return False
        weight, bias = module._parameters["weight"], module._parameters["bias"]
        if weight is None or bias is None or weight.dim() != 2 or bias.shape != weight.shape[1:]:
            return False
        inputs, outputs = weight.shape
        generator = torch.Generator().manual_seed(0)
        # Outer products: as good a probe as a random matrix, and made faster than one.
        left, right = torch.randn(inputs, 2, generator=generator), torch.randn(2, outputs, generator=generator)
        values = {"weight": left @ right, "bias": torch.randn(outputs, generator=generator)}
        x = torch.randn(2, 3, inputs, generator=generator)
        try:
            found = with_values(module, values).forward(x)
        except Exception:  # not a product: some other module with a matrix and a vector
            return False
        wanted = x @ values["weight"] + values["bias"]
        return isinstance(found, torch.Tensor) and found.shape == wanted.shape and torch.allclose(found, wanted, rtol=1e-3, atol=1e-3)

    def install(self, module: nn.Module) -> None:
        module.forward = types.MethodType(_forward, module)


def _forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    weight, bias = self._parameters["weight"], self._parameters["bias"]
    assert weight is not None
    assert bias is not None
    return emit("Linear", (x, weight.t(), bias), (*x.shape[:-1], weight.shape[1]))
