"""Stand-ins match what they can prove to equal, by value, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.models.cohere.modeling_cohere import apply_rotary_pos_emb as interleaved
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as halves
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from edgespec.export.standins.linear import LinearStandIn
from edgespec.export.standins.rms_norm import RmsNormStandIn, _form
from edgespec.export.standins.rotary import _rotates_halves


@pytest.mark.parametrize(
    ("norm", "form"),
    [(LlamaRMSNorm(16, eps=1e-5), (0.0, 1e-5)), (Qwen3RMSNorm(8, eps=1e-6), (0.0, 1e-6)), (Gemma3RMSNorm(16, eps=1e-4), (1.0, 1e-4))],
)
def test_rms_norms_are_told_apart_by_value(norm: nn.Module, form: tuple[float, float]) -> None:
    assert _form(norm) == form


class ScaledNorm(nn.Module):
    """Looks like an RMSNorm in every name and is none."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))
        self.eps = 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 1.01 * self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


@pytest.mark.parametrize("module", [nn.LayerNorm(16), nn.Linear(4, 4), nn.Embedding(4, 4), ScaledNorm(), nn.PReLU()])
def test_other_modules_are_left_alone(module: nn.Module) -> None:
    assert not RmsNormStandIn().matches(module)


def test_rotary_is_matched_by_value() -> None:
    assert _rotates_halves(halves)
    assert not _rotates_halves(interleaved)
    assert not _rotates_halves(lambda q, k, *_: (q, k))
    assert not _rotates_halves(lambda q, k: (q, k))


def test_a_subclass_with_its_own_forward_is_no_linear() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    assert LinearStandIn().matches(nn.Linear(4, 4))
    assert not LinearStandIn().matches(Doubled(4, 4))
