"""What a stand-in is: it replaces the ``forward`` of the modules that it can prove it equals."""

from __future__ import annotations

import abc
import copy
from collections.abc import Mapping

import torch
from torch import nn


class StandIn(abc.ABC):
    """Replaces one kind of module by one operator of the dialect.

    ``matches`` decides from values, not from names: it runs the module's own ``forward`` on known numbers and compares.
    A module that no stand-in matches is traced as it is, into plain ONNX operators: slower, never wrong.
    """

    @abc.abstractmethod
    def matches(self, module: nn.Module) -> bool: ...

    @abc.abstractmethod
    def install(self, module: nn.Module) -> None:
        """Replace ``module.forward``. Called after ``matches`` returned true."""


def with_values(module: nn.Module, values: Mapping[str, torch.Tensor]) -> nn.Module:
    """A copy of ``module`` that has ``values`` as parameters: models are built without weights, probes need some."""
    probe = copy.copy(module)
    probe._parameters = dict(probe._parameters)
    for name, value in values.items():
        probe._parameters[name] = nn.Parameter(value, requires_grad=False)
    return probe
