"""The experts of a mixture-of-experts layer as one ``Experts`` operator.

transformers lets an experts function be registered under a name (``ExpertsInterface``) and calls it with the tokens and
the router's choice: k experts and their weights for each token. Under our name it becomes the operator, if the gate
between an expert's two matrices is found, on known numbers, to be a swish-gated unit:

    gate, up = interleaved columns or halves of x W1;  min(gate, limit) * sigmoid(alpha * gate) * (clamp(up, limit) + beta)

For any other gate every expert is evaluated for every token: exact, in plain ONNX operators, and E / k times the work.
:func:`dense_experts` says so before it happens.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from edgespec.export.standins.attention import IMPLEMENTATION
from edgespec.export.trace.dialect import emit


@dataclasses.dataclass(frozen=True)
class Gate:
    """A swish-gated unit. ``limit`` 0 is no limit; ``interleaved`` says how gate and up lie beside each other."""

    interleaved: bool
    alpha: float
    beta: float
    limit: float

    def __call__(self, both: torch.Tensor) -> torch.Tensor:
        gate, up = (both[..., 0::2], both[..., 1::2]) if self.interleaved else both.chunk(2, -1)
        if self.limit:
            gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return gate * torch.sigmoid(self.alpha * gate) * (up + self.beta)


_gates: dict[nn.Module, Gate | None] = {}
"""What was found of the modules of the model being traced: while it is traced there are no values to probe with."""


@contextlib.contextmanager
def experts_stand_in(model: nn.Module) -> Iterator[None]:
    """Find the gates of the experts of ``model``, for the length of one trace."""
    _gates.update({module: find_gate(module) for module in model.modules() if hasattr(module, "has_post_expert_norm")})
    try:
        yield
    finally:
        _gates.clear()


def experts(module: nn.Module, tokens: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """tokens ``[T, H]``, chosen experts and their weights ``[T, k]`` -> ``[T, H]``."""
    parts: Any = module
    up_name = "gate_up_proj" if parts.has_gate else "up_proj"
    first, second = getattr(parts, up_name), parts.down_proj
    first_bias, second_bias = (getattr(parts, f"{name}_bias") if parts.has_bias else None for name in (up_name, "down_proj"))
    if parts.is_transposed:
        first, second = first.transpose(1, 2), second.transpose(1, 2)
    count, rows, width = first.shape
    mix = tokens.new_zeros(tokens.shape[0], count).scatter(1, chosen, weights.to(tokens.dtype))
    gate = _gates[module]
    if gate is None:
        return _dense(module, tokens, mix, first, first_bias, second, second_bias)
    if not gate.interleaved:
        # The kernel wants gate and up of a channel beside each other. This becomes part of how the weight is written.
        first = first.reshape(count, 2, rows // 2, width).transpose(1, 2).reshape(count, rows, width)
        if first_bias is not None:
            first_bias = first_bias.reshape(count, 2, rows // 2).transpose(1, 2).reshape(count, rows)
    settings = {"k": chosen.shape[-1], "alpha": gate.alpha, "beta": gate.beta, "limit": gate.limit}
    return emit("Experts", (tokens, mix, first, first_bias, second, second_bias), tokens.shape, **settings)


def find_gate(module: nn.Module) -> Gate | None:
    """The swish-gated unit that ``module`` applies between its matrices, or None."""
    parts: Any = module
    if not parts.has_gate or parts.has_post_expert_norm:
        return None
    # Large enough that a limit shows.
    both = 30 * torch.randn(16, 16, generator=torch.Generator().manual_seed(0))
    both[:8] /= 30
    try:
        found = parts._apply_gate(both.clone())
    except Exception:  # a gate that needs more than its input
        return None
    numbers = sorted({float(value) for value in vars(module).values() if isinstance(value, float)})
    for settings in itertools.product((False, True), (1.0, *numbers), (0.0, 1.0), (0.0, *numbers)):
        wanted = Gate(*settings)(both)
        if found.shape == wanted.shape and torch.allclose(found, wanted, rtol=1e-5, atol=1e-5):
            return Gate(*settings)
    return None


def dense_experts(model: nn.Module) -> list[str]:
    """One line for each layer's experts that are evaluated for every token, and what that costs."""
    lines = []
    for name, module in model.named_modules():
        if hasattr(module, "has_post_expert_norm") and find_gate(module) is None:
            parts: Any = module
            used = getattr(parts.config, "num_experts_per_tok", 1)
            count = parts.down_proj.shape[0]
            lines.append(
                f"{name}: ONNX Runtime has no operator for experts with this gate; all {count} are evaluated for every token, in float, "
                f"{count / used:.0f} times the work of the {used} that the router chooses"
            )
    return lines


def _dense(
    module: nn.Module,
    tokens: torch.Tensor,
    mix: torch.Tensor,
    first: torch.Tensor,
    first_bias: torch.Tensor | None,
    second: torch.Tensor,
    second_bias: torch.Tensor | None,
) -> torch.Tensor:
    parts: Any = module
    hidden = torch.matmul(tokens, first.transpose(1, 2))  # [E, T, 2I]
    if first_bias is not None:
        hidden = hidden + first_bias[:, None]
    hidden = parts._apply_gate(hidden) if parts.has_gate else parts.act_fn(hidden)
    out = torch.matmul(hidden, second.transpose(1, 2))
    if second_bias is not None:
        out = out + second_bias[:, None]
    if parts.has_post_expert_norm:
        out = parts.post_expert_norm(out)
    return (out * mix.t()[..., None]).sum(0)


ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, experts)
