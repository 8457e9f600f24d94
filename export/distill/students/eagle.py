"""An EAGLE-3 head (Li et al. 2025) to train, unrolled over several steps as it will draft ("training-time test").

Step 0 has a row for each token, with the target's feature. In step s row j reads its own feature of step s - 1 and the token s places
on; it sees the rows of step 0 up to j and of each later step only its own, which is what a draft of s tokens behind row j sees.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import nn
from transformers import AttentionInterface

from edgespec.errors import UsageError
from edgespec.export.distill.config import DistillConfig
from edgespec.export.distill.students.base import Student, common_settings, stored
from edgespec.export.heads.base import TargetShape
from edgespec.export.heads.eagle_layout import EMBEDDING, HEAD, LISTENS
from edgespec.export.heads.eagle_module import EagleModule, Norms, Structure
from edgespec.export.passes.tap_features import entering

UNROLLED = "edgespec_unrolled"
HEAD_DIM = 64
HIDDEN = -1e9
SMALL = 0.1  # of the usual spread, for what is added to the residual: the head begins by passing on the target's feature
TENSORS = "model.safetensors"


class EagleStudent(Student):
    kind = "eagle"

    def __init__(self, shape: TargetShape, ids: np.ndarray, config: DistillConfig) -> None:
        super().__init__(shape, ids, config)
        self.layers = listened(shape, config)
        self.settings = decoder_settings(shape, config)
        structure = Structure(
            settings=self.settings,
            stored=frozenset(),
            three=True,
            wide=shape.hidden_size * len(self.layers),
            rows=len(ids),
            vocabulary=shape.vocab_size,
            norms=Norms(),
        )
        self.module = EagleModule(structure, "eager")
        self.module.set_submodule("lm_head", nn.Identity())  # ``head`` is applied to labelled rows only
        self._attention.config._attn_implementation = UNROLLED
        self._initialise()
        self.module.requires_grad_(True)
        self.module.embed_tokens.requires_grad_(False)

    @staticmethod
    def taps(shape: TargetShape, config: DistillConfig) -> tuple[str, ...]:
        return tuple(map(entering, listened(shape, config)))

    def hidden(self, tokens: torch.Tensor, features: torch.Tensor) -> list[torch.Tensor]:
        rows, size = features.shape[1], self.module.hidden_size
        causal = torch.full((rows, rows), HIDDEN, device=features.device).triu(1)[None, None]
        positions = torch.arange(rows, device=features.device)[None]
        given, own = features, features[:, :0, :size]
        found = []
        self._attention.earlier = []
        for step in range(self.steps):
            output = self.module(tokens[:, 1 + step : 1 + step + rows], positions + step, [given, own], attention_mask=causal)
            found.append(output.logits)
            given, own = features[:, :0], output.last_hidden_state
        self._attention.earlier = []
        return found

    @property
    def _attention(self) -> Any:
        layer: Any = self.module.layers[0]
        return layer.self_attn

    def step_weights(self) -> int:
        without = sum(
            parameter.numel() for name, parameter in self.module.named_parameters() if not name.startswith(("embed_tokens", "fc."))
        )
        return without + self.head.numel()

    def write(self, folder: Path) -> None:
        tensors = {
            name.replace("layers.0.", "midlayer."): stored(parameter)
            for name, parameter in self.module.named_parameters()
            if name != EMBEDDING
        }
        if self.config.head != "borrowed":
            tensors[HEAD] = stored(self.head)
        tensors["d2t"] = self.ids - torch.arange(len(self.ids))
        tensors["t2d"] = torch.zeros(self.shape.vocab_size, dtype=torch.bool).index_fill(0, self.ids, True)
        (folder / TENSORS).write_bytes(save(tensors))
        settings = {
            "architectures": ["LlamaForCausalLMEagle3"],
            **self.settings,
            **common_settings(self),
            "draft_vocab_size": len(self.ids),
            "target_hidden_size": self.shape.hidden_size,
            LISTENS: list(self.layers),
            "eagle_config": {LISTENS: list(self.layers), "use_aux_hidden_state": True},
        }
        (folder / "config.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")

    def _initialise(self) -> None:
        size = self.module.hidden_size
        with torch.no_grad():
            for module in self.module.modules():
                for name, parameter in list(module._parameters.items()):
                    if parameter is not None and parameter.is_meta:
                        values = self.noise(*parameter.shape) if parameter.dim() > 1 else torch.ones(parameter.shape)
                        module._parameters[name] = nn.Parameter(values)
            self.module.embed_tokens.weight.copy_(self.shape.checkpoint.read_float(self.shape.embedding))
            layer: Any = self.module.layers[0]
            for matrix in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
                matrix.mul_(SMALL)
            self.module.fc.weight.mul_(SMALL)[:, -size:] += torch.eye(size)  # the layer nearest to the target's head


def listened(shape: TargetShape, config: DistillConfig) -> tuple[int, ...]:
    """The layers in front of which the head listens: what was asked for, else the paper's low, middle and high.

    Raises:
        UsageError: the target has no such layer.
    """
    count = shape.layers
    wanted = config.taps or tuple(sorted({max(1, min(layer, count - 1)) for layer in (2, count // 2, count - 3)}))
    if max(wanted) >= count or tuple(sorted(set(wanted))) != tuple(wanted):
        raise UsageError(f"--taps: {','.join(map(str, wanted))} are not ascending layers from 1 to {count - 1}")
    return tuple(wanted)


def decoder_settings(shape: TargetShape, config: DistillConfig) -> dict[str, Any]:
    """Of the head's one layer, a Llama's, in transformers' terms; heads and widths are the target's where these serve."""
    target = shape.checkpoint.config.get_text_config()
    size = shape.hidden_size
    heads = getattr(target, "num_attention_heads", None)
    dim = getattr(target, "head_dim", None) or (size // heads if heads and size % heads == 0 else None)
    if not isinstance(heads, int) or not isinstance(dim, int) or dim % 2:
        heads, dim = -(-size // HEAD_DIM), HEAD_DIM
    kv_heads = getattr(target, "num_key_value_heads", None)
    width = config.intermediate or getattr(target, "intermediate_size", None)
    return {
        "model_type": "llama",
        "hidden_size": size,
        "intermediate_size": width if isinstance(width, int) else 4 * size,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads if isinstance(kv_heads, int) and kv_heads > 0 and heads % kv_heads == 0 else heads,
        "head_dim": dim,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": int(getattr(target, "max_position_embeddings", 0) or 4096),
        "vocab_size": shape.vocab_size,
        "tie_word_embeddings": False,
    }


def _attend(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scaling: float, **_: Any
) -> tuple[torch.Tensor, None]:
    """Attention of [B, H, A, D] over the rows of step 0 that ``mask`` [1, 1, A, A] shows, and over its own row of each later step, which
    is one score and not a matrix of them. Keys and values of the steps so far stay in ``module.earlier``."""
    groups = query.shape[1] // key.shape[1]
    module.earlier.append((key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)))
    (keys, values), *later = module.earlier
    query = query * scaling
    scores = query @ keys.transpose(2, 3) + mask
    own = [(query * keys).sum(-1, keepdim=True) for keys, _ in later]
    p = torch.cat([scores, *own], -1).softmax(-1, torch.float32).to(query.dtype)
    found = p[..., : keys.shape[2]] @ values
    for step, (_, values) in enumerate(later):
        place = mask.shape[-1] + step
        found = found + p[..., place : place + 1] * values
    return found.transpose(1, 2).contiguous(), None


AttentionInterface.register(UNROLLED, _attend)
