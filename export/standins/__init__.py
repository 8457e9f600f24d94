"""Operator stand-ins: what replaces a few modules of transformers while a model is traced.

To add one, write a file with a :class:`~edgespec.export.standins.base.StandIn` and put it in ``MODULES`` (CONTRIBUTING.md).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn

from edgespec.export.standins.base import StandIn
from edgespec.export.standins.conv1d import Conv1DStandIn
from edgespec.export.standins.embedding import embedding_stand_in
from edgespec.export.standins.experts import dense_experts, experts_stand_in
from edgespec.export.standins.layer_norm import LayerNormStandIn
from edgespec.export.standins.linear import LinearStandIn
from edgespec.export.standins.rms_norm import RmsNormStandIn
from edgespec.export.standins.rotary import rotary_stand_in

__all__ = ["MODULES", "dense_experts", "stand_ins"]

MODULES: tuple[StandIn, ...] = (LinearStandIn(), Conv1DStandIn(), RmsNormStandIn(), LayerNormStandIn())


@contextlib.contextmanager
def stand_ins(model: nn.Module) -> Iterator[None]:
    """Install the stand-ins of ``model`` for the length of one trace. The model is for tracing only afterwards."""
    for module in model.modules():
        for stand_in in MODULES:
            if stand_in.matches(module):
                stand_in.install(module)
                break
    with embedding_stand_in(), rotary_stand_in(model), experts_stand_in(model):
        yield
