"""Stand-ins match what they can prove to equal, by value, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.models.cohere.modeling_cohere import CohereLayerNorm
from transformers.models.cohere.modeling_cohere import apply_rotary_pos_emb as interleaved_repeated
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.glm.modeling_glm import apply_rotary_pos_emb as interleaved_partial
from transformers.models.gpt_oss.modeling_gpt_oss import apply_rotary_pos_emb as angles_once
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as halves
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm
from transformers.pytorch_utils import Conv1D

from edgespec.export.standins.conv1d import Conv1DStandIn
from edgespec.export.standins.layer_norm import LayerNormStandIn, _epsilon
from edgespec.export.standins.linear import LinearStandIn
from edgespec.export.standins.rms_norm import RmsNormStandIn, _form
from edgespec.export.standins.rotary import rotation_form


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
    assert not LayerNormStandIn().matches(module)


def test_layer_norms_without_bias_are_told_by_value() -> None:
    assert _epsilon(CohereLayerNorm(hidden_size=16, eps=1e-4)) == 1e-4
    assert _epsilon(CohereLayerNorm(hidden_size=(4, 16), eps=1e-5)) == 1e-5
    assert not LayerNormStandIn().matches(LlamaRMSNorm(16))


def test_the_form_of_rotation_is_told_by_value() -> None:
    assert rotation_form(halves) == (False, "twice")
    assert rotation_form(interleaved_repeated) == (True, "repeated")
    assert rotation_form(interleaved_partial) == (True, "twice")
    assert rotation_form(angles_once) == (False, "once")
    assert rotation_form(lambda q, k, *_: (q, k)) is None
    assert rotation_form(lambda q, k: (q, k)) is None  # type: ignore[misc]
    assert rotation_form(lambda q, k, cos, sin: halves(q, -k, cos, sin)) is None


def test_transposed_products_are_told_by_value() -> None:
    assert Conv1DStandIn().matches(Conv1D(6, 4))
    assert not Conv1DStandIn().matches(nn.Linear(4, 4))
    assert not Conv1DStandIn().matches(nn.LayerNorm(4))
    doubled = Conv1D(6, 4)
    doubled.forward = lambda x: 2 * Conv1D.forward(doubled, x)
    assert not Conv1DStandIn().matches(doubled)


def test_a_subclass_with_its_own_forward_is_no_linear() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    assert LinearStandIn().matches(nn.Linear(4, 4))
    assert not LinearStandIn().matches(Doubled(4, 4))
