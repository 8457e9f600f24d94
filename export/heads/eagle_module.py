"""An EAGLE head in torch: transformers' own decoder layer with what EAGLE puts around it."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import CONFIG_MAPPING

from edgespec.errors import UnsupportedModelError
from edgespec.export.standins.attention import IMPLEMENTATION
from edgespec.export.trace.dialect import emit
from edgespec.export.trace.model import build_empty, decoder_layers

PROJECTIONS = ("q_proj", "k_proj", "v_proj")
# Settings that are about something else than the decoder layer, and those of configurations that come with code.
FOREIGN = ("architectures", "auto_map", "dtype", "torch_dtype", "model_type", "quantization_config", "transformers_version")


@dataclasses.dataclass(frozen=True)
class Norms:
    """Where EAGLE-3 heads in the speculators format may have norms, by the names of their configuration."""

    norm_before_residual: bool = False
    """The layer's residual is the feature behind ``hidden_norm``."""
    norm_before_fc: bool = False
    """``input_norm`` over all hidden states together."""
    fc_norm: bool = False
    """``fc_norm.{i}`` over those of each layer."""
    norm_output: bool = False
    """The head's own feature is what its ``lm_head`` reads."""


@dataclasses.dataclass(frozen=True)
class Structure:
    """What a module is built from.

    Attributes:
        settings: of the decoder layers, in transformers' terms.
        stored: names of the tensors that the checkpoint has: they say which biases and norms there are.
        three: EAGLE-3, else EAGLE-1 or 2.
        wide: width of the target's features, F.
        rows: tokens that the head scores, Vd.
        vocabulary: of the target, V.
        norms: of speculators' heads.
    """

    settings: dict[str, Any]
    stored: frozenset[str]
    three: bool
    wide: int
    rows: int
    vocabulary: int
    norms: Norms


class EagleModule(nn.Module):
    """Parameters on the meta device. ``attention`` is transformers' implementation of it; the exporter's stand-in unless given."""

    def __init__(self, structure: Structure, attention: str | None = None) -> None:
        super().__init__()
        three, wide, stored = structure.three, structure.wide, structure.stored
        self.three = three
        self.norms = structure.norms
        self._traced = attention is None
        self._wide = wide
        self.config = _decoder_config(structure.settings)
        plain = build_empty(self.config, attention or IMPLEMENTATION)
        size = self.hidden_size = int(self.config.hidden_size)
        with torch.device("meta"):
            self.embed_tokens = nn.Embedding(structure.vocabulary, size)
            self.layers = decoder_layers(plain)
            self.rotary_emb = _part(plain.get_decoder(), "rotary_emb")
            self.fc = nn.Linear(wide if three else 2 * size, size, bias="fc.bias" in stored)
            self.lm_head = nn.Linear(size, structure.rows, bias=False)
            self._fit_layers(stored)
            if three:
                self._widen(wide)
        self.requires_grad_(False)
        self.eval()

    def _fit_layers(self, stored: frozenset[str]) -> None:
        for index, layer in enumerate(self.layers):
            if f"layers.{index}.input_layernorm.weight" not in stored and not self.three:
                layer.input_layernorm = nn.Identity()
            for name, module in layer.named_modules():
                if isinstance(module, nn.Linear):
                    has = f"layers.{index}.{name}.bias" in stored
                    module.register_parameter("bias", nn.Parameter(torch.empty(module.out_features)) if has else None)

    def _widen(self, wide: int) -> None:
        """What EAGLE-3 has besides."""
        layer: Any = self.layers[0]
        epsilon, size = float(self.config.rms_norm_eps), self.hidden_size
        for name in PROJECTIONS:
            narrow = _part(layer.self_attn, name)
            setattr(layer.self_attn, name, nn.Linear(2 * size, narrow.out_features, bias=narrow.bias is not None))
        layer.hidden_norm = nn.RMSNorm(size, epsilon)
        self.norm = nn.RMSNorm(size, epsilon)
        if self.norms.norm_before_fc:
            self.input_norm = nn.RMSNorm(wide, epsilon)
        if self.norms.fc_norm:
            if wide % size:
                raise UnsupportedModelError("an EAGLE head with fc_norm of another hidden size than its target's cannot be exported")
            self.fc_norm = nn.ModuleList(nn.RMSNorm(size, epsilon) for _ in range(wide // size))

    def feature_inputs(self) -> dict[str, int]:
        """Names and widths of the inputs with features, as the runtime's model has them."""
        return {"features": self._wide} | ({"own_features": self.hidden_size} if self.three else {})

    def get_decoder(self) -> EagleModule:
        return self

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        features: list[torch.Tensor],
        attention_mask: torch.Tensor | None = None,
        **_: Any,
    ) -> types.SimpleNamespace:
        """ids and positions [1, S], features [1, S, F] -> ``logits`` [1, S, Vd], own features ``last_hidden_state`` [1, S, H].

        EAGLE-3 has two features, those of the target [1, A, F] and the head's own [1, B, H], with A + B = S.
        """
        embedded = self.embed_tokens(input_ids)
        angles = self.rotary_emb(embedded, position_ids)
        options = {"attention_mask": attention_mask, "position_ids": position_ids, "position_embeddings": angles}
        if self.three:
            return self._three(embedded, features, options)
        hidden = self.fc(torch.cat([embedded, features[0]], -1))
        for layer in self.layers:
            found = layer(hidden, **options)
            hidden = found[0] if isinstance(found, tuple) else found
        return types.SimpleNamespace(logits=self.lm_head(hidden), last_hidden_state=hidden)

    def _three(self, embedded: torch.Tensor, features: list[torch.Tensor], options: dict[str, Any]) -> types.SimpleNamespace:
        hidden = self._join(self._project(features[0]), features[1], embedded)
        layer: Any = self.layers[0]
        normed = layer.hidden_norm(hidden)
        residual = normed if self.norms.norm_before_residual else hidden
        hidden = residual + layer.self_attn(hidden_states=torch.cat([layer.input_layernorm(embedded), normed], -1), **options)[0]
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        normed = self.norm(hidden)
        return types.SimpleNamespace(logits=self.lm_head(normed), last_hidden_state=normed if self.norms.norm_output else hidden)

    def _project(self, given: torch.Tensor) -> torch.Tensor:
        """The target's hidden states [1, A, F] as features [1, A, H]."""
        if self.norms.norm_before_fc:
            given = self.input_norm(given)
        if self.norms.fc_norm:
            given = torch.cat([norm(part) for norm, part in zip(self.fc_norm, given.chunk(len(self.fc_norm), -1), strict=True)], -1)
        projected: torch.Tensor = self.fc(given)
        return projected

    def _join(self, given: torch.Tensor, own: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        if self._traced:
            return emit("Rows", (given, own), like.shape)
        return torch.cat([given, own], 1)

    def logits(self, tokens: list[int], features: np.ndarray) -> np.ndarray:
        """float32 [S, Vd] in torch, for tokens whose features [S, F] all are the target's."""
        count = len(tokens)
        hidden = torch.full((count, count), torch.finfo(torch.float32).min).triu(1)[None, None]
        own = [torch.zeros(1, 0, self.hidden_size)] if self.three else []
        given = torch.from_numpy(np.ascontiguousarray(features))[None]
        with torch.no_grad():
            found = self(torch.tensor([tokens]), torch.arange(count)[None], [given, *own], attention_mask=hidden)
        scores: np.ndarray = found.logits[0].numpy()
        return scores


def _decoder_config(settings: dict[str, Any]) -> Any:
    kind = settings.get("model_type", "llama")
    kind = kind if kind in CONFIG_MAPPING else "llama"  # heads have been published under names of their own
    fields = {name: value for name, value in settings.items() if name not in FOREIGN}
    try:
        return CONFIG_MAPPING[kind].from_dict(fields)
    except Exception as error:  # transformers raises many kinds here, all about this one configuration
        reason = str(error).strip().split("\n")[0]
        raise UnsupportedModelError(f"EAGLE head: its configuration cannot be used: {reason[:200]}") from error


def _part(module: Any, name: str) -> Any:
    """A part that the decoder layers which can be exported have."""
    found = getattr(module, name, None)
    if found is None:
        raise UnsupportedModelError(f"EAGLE head: its decoder layer has no {name} ({type(module).__name__}), so it cannot be built")
    return found
