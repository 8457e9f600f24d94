"""Rotary angles that depend on how long the text is (longrope, dynamic scaling).

With these a position's angle changes once the text has grown beyond some length, while the cache holds keys that were
rotated by the old angle: transformers then computes the whole text anew. A bundle is kept to the lengths at which the angles
stay what they are, and traced with those. Which lengths these are is found by asking the model's own code.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

PROBED = (0, 1, 2, 3)


def steady_length(model: nn.Module, longest: int) -> tuple[int, str]:
    """The largest length up to ``longest`` at which the angles of the first positions are those of a short text, and the
    kind of scaling that changes them beyond it ("" if nothing does)."""
    found = (longest, "")
    for module, layer_type, kind in _scaled(model):
        length = _steady(module, layer_type, found[0])
        if length < found[0]:
            found = (length, kind)
    return found


def fix_angles(model: nn.Module) -> None:
    """Let the angles stay those of a short text. To be called once the length is known to be within :func:`steady_length`."""
    for module, layer_type, _ in list(_scaled(model)):
        # The name of the scaling decides only whether angles are looked at again in each pass; they are made already.
        if layer_type is None:
            module.rope_type = "default"
        else:
            module.rope_type = {**module.rope_type, layer_type: "default"}


def _scaled(model: nn.Module) -> Iterator[tuple[Any, str | None, str]]:
    """Modules that make angles, with the type of layer they are asked for (Gemma-3 has two) and the kind of scaling."""
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        if isinstance(kinds, str):
            yield module, None, kinds
        elif isinstance(kinds, dict):
            yield from ((module, layer_type, kind) for layer_type, kind in kinds.items())


def _steady(module: nn.Module, layer_type: str | None, longest: int) -> int:
    """The largest length, by bisection, in which the first positions have the angles that they have in a short text."""
    short = _angles(module, layer_type, len(PROBED) + 1)

    def same(length: int) -> bool:
        return torch.equal(_angles(module, layer_type, length), short)

    if longest <= len(PROBED) + 1 or same(longest):
        return longest
    good, bad = len(PROBED) + 1, longest
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if same(middle) else (good, middle)
    return good


def _angles(module: nn.Module, layer_type: str | None, length: int) -> torch.Tensor:
    """The angles of the first positions in a pass that ends a text of ``length``. The module is left as it was."""
    probe: Any = copy.copy(module)
    probe._buffers = {name: None if buffer is None else buffer.clone() for name, buffer in module._buffers.items()}
    positions = torch.tensor([[*PROBED, length - 1]])
    options = {} if layer_type is None else {"layer_type": layer_type}
    with torch.no_grad():
        try:
            found = probe(torch.zeros(1, 1, 1), positions, **options)
        except (RuntimeError, IndexError):  # Qwen2.5-VL: a position each in time, height and width
            found = probe(torch.zeros(1, 1, 1), positions.expand(3, 1, -1), **options)
    # cos and sin, or one tensor of complex numbers (Llama-4)
    return torch.stack(found if isinstance(found, tuple) else (found,))[..., : len(PROBED), :]
