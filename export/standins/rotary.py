"""Rotary position embedding (Su et al. 2021) as one ``Rotary`` operator each for q and k.

transformers computes cos and sin once per pass from position_ids, with whatever scaling the model has; that part is
traced as it is. What is replaced is ``apply_rotary_pos_emb``, a function of each modelling module, and only when it
is found to equal the operator on known vectors.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from edgespec.export.trace.dialect import emit

NAME = "apply_rotary_pos_emb"
Apply = Callable[..., tuple[torch.Tensor, torch.Tensor]]


@contextlib.contextmanager
def rotary_stand_in(model: nn.Module) -> Iterator[None]:
    """Replace ``apply_rotary_pos_emb`` in the module that defines ``model``, if it computes the common rotation."""
    module: Any = sys.modules[type(model).__module__]
    original: Apply | None = getattr(module, NAME, None)
    if original is None or not _rotates_halves(original):
        yield
        return
    setattr(module, NAME, apply)
    try:
        yield
    finally:
        setattr(module, NAME, original)


def apply(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """q ``[1, N, S, D]`` and k ``[1, G, S, D]`` rotated by cos and sin ``[1, S, R]``, R at most D."""
    return emit("Rotary", (q, cos, sin), q.shape, interleaved=0), emit("Rotary", (k, cos, sin), k.shape, interleaved=0)


def _rotates_halves(function: Apply) -> bool:
    """Whether ``function`` turns the pairs ``(i, i + R/2)`` by the angle of position and i."""
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(1, 4, 3, 8, generator=generator), torch.randn(1, 2, 3, 8, generator=generator)
    angles = torch.rand(1, 3, 4, generator=generator)
    cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)

    def expected(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * cos[:, None] + torch.cat([-second, first], -1) * sin[:, None]

    try:
        found = function(q, k, cos, sin)
    except Exception:  # another signature: left to be traced as it is
        return False
    return all(torch.allclose(got, expected(x), atol=1e-6) for got, x in zip(found, (q, k), strict=True))
