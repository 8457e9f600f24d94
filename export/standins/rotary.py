"""Rotary position embedding (Su et al. 2021) as one ``Rotary`` operator each for q and k.

transformers computes cos and sin once per pass from position_ids, with whatever scaling the model has; that part is
traced as it is. What is replaced is ``apply_rotary_pos_emb``, a function of each modelling module. It comes in forms that
share a name and a signature: which dimensions make a pair, and how often and in which order each angle is given. Which
form a function has is found on known vectors; one that has none of them is traced as it is.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from edgespec.export.trace.dialect import emit

NAME = "apply_rotary_pos_emb"
Apply = Callable[..., tuple[torch.Tensor, torch.Tensor]]
Form = tuple[bool, str]
"""``interleaved``: pairs are (2i, 2i + 1), else (i, i + R/2). ``angles``: see ``ANGLES``."""
# How the R/2 angles of a position are laid out in cos and sin, and how to take them out.
ANGLES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "twice": lambda half: torch.cat([half, half], -1),
    "repeated": lambda half: half.repeat_interleave(2, -1),
    "once": lambda half: half,
}


@contextlib.contextmanager
def rotary_stand_in(model: nn.Module) -> Iterator[None]:
    """Replace ``apply_rotary_pos_emb`` in the modules that define ``model`` and its parts, where its form is known."""
    with contextlib.ExitStack() as stack:
        for name in sorted({type(module).__module__ for module in model.modules()}):
            owner: Any = sys.modules[name]
            original: Apply | None = getattr(owner, NAME, None)
            form = rotation_form(original) if original is not None else None
            if original is not None and form is not None:
                setattr(owner, NAME, _operator(original, *form))
                stack.callback(setattr, owner, NAME, original)
        yield


def rotation_form(function: Apply) -> Form | None:
    """The form of rotation that ``function`` computes, or None."""
    for interleaved, angles in itertools.product((False, True), ANGLES):
        # A function that also takes fewer angles than dimensions must leave the other dimensions alone.
        if _equals(function, interleaved, angles, 8) and _equals(function, interleaved, angles, 4, may_fail=True):
            return interleaved, angles
    return None


def _operator(original: Apply, interleaved: bool, angles: str) -> Apply:
    def apply(
        q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *args: Any, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """q ``[1, N, S, D]`` and k ``[1, G, S, D]``, rotated in their first R dimensions by cos and sin ``[1, S, R]``."""
        if args or options.get("unsqueeze_dim", 1) != 1 or not q.dim() == k.dim() == 4 or cos.dim() != 3:
            return original(q, k, cos, sin, *args, **options)
        attributes: dict[str, int | str] = {"interleaved": int(interleaved), "angles": angles}
        return emit("Rotary", (q, cos, sin), q.shape, **attributes), emit("Rotary", (k, cos, sin), k.shape, **attributes)

    return apply


def _equals(function: Apply, interleaved: bool, angles: str, rotated: int, may_fail: bool = False) -> bool:
    """Whether ``function`` rotates the first ``rotated`` of 8 dimensions in this form."""
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(1, 4, 3, 8, generator=generator), torch.randn(1, 2, 3, 8, generator=generator)
    half = 6 * torch.rand(1, 3, rotated // 2, generator=generator)
    cos, sin = half.cos(), half.sin()
    try:
        found = function(q.clone(), k.clone(), ANGLES[angles](cos), ANGLES[angles](sin))
    except Exception:  # another signature, or other shapes: left to be traced as it is
        return may_fail
    if not isinstance(found, tuple) or len(found) != 2:
        return False
    return all(
        got.shape == x.shape and torch.allclose(got, _rotate(x, cos[:, None], sin[:, None], interleaved), atol=1e-6)
        for got, x in zip(found, (q, k), strict=True)
    )


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    width = 2 * cos.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    first, second = (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    pair = first * cos - second * sin, second * cos + first * sin
    return torch.cat([torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1), rest], -1)
