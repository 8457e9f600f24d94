"""Attention over the KV cache as one ``Attention`` operator per layer.

transformers lets an attention function be registered under a name (``AttentionInterface``) and calls it with q, k, v
after projection, norm and rotation. Under that name no mask is built: the operator is causal, and the graph's
``attention_bias`` says what else is hidden.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface

from edgespec.errors import UnsupportedModelError
from edgespec.export.trace.dialect import emit, emit_many
from edgespec.manifest import KvLayer

IMPLEMENTATION = "edgespec"


@dataclasses.dataclass
class KvTape:
    """The KV buffers of the pass being traced, by layer, and the layers' shapes as they are met.

    ``layers`` is filled by the first pass over the model (:func:`edgespec.export.trace.model.discover_layers`), when
    there are no buffers yet. ``keys`` are the new keys of each layer with a cache of its own: a layer that comes with the
    very same tensor shares that layer's cache, and is in ``shared`` with the layer it takes from.
    """

    past: list[tuple[torch.Tensor, torch.Tensor]] | None = None
    present: dict[int, tuple[torch.Tensor, torch.Tensor]] = dataclasses.field(default_factory=dict)
    layers: dict[int, KvLayer] = dataclasses.field(default_factory=dict)
    keys: dict[int, torch.Tensor] = dataclasses.field(default_factory=dict)
    shared: dict[int, int] = dataclasses.field(default_factory=dict)

    def owner(self, key: torch.Tensor) -> int | None:
        """The layer that has brought this very tensor before."""
        return next((layer for layer, own in self.keys.items() if own is key), None)


_tape = KvTape()


def start_tape(past: list[tuple[torch.Tensor, torch.Tensor]] | None) -> KvTape:
    """Begin a traced pass. transformers gives the attention function no room for more arguments, so it is module state."""
    global _tape
    _tape = KvTape(past=past)
    return _tape


def attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _mask: torch.Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """query ``[1, N, S, D]``, key ``[1, G, S, D]``, value ``[1, G, S, Dv]`` -> ``[1, S, N, Dv]``, as transformers expects.

    ``s_aux`` ``[N]`` are attention sinks: logits of one more key that takes its share of every softmax and has no value.
    """
    layer = getattr(module, "layer_idx", None)
    if layer is None:
        raise UnsupportedModelError(f"{type(module).__name__} does not say which layer it is, so it has no KV cache")
    if getattr(module, "is_causal", True) is False:
        raise UnsupportedModelError(f"layer {layer} ({type(module).__name__}) is not causal")
    batch, heads, length, dim = query.shape
    kv_heads, value_dim = key.shape[1], value.shape[-1]
    # A layer that says None has no window, whatever its module is told of the other layers' (EXAONE-4).
    window = options["sliding_window"] if "sliding_window" in options else getattr(module, "sliding_window", None)
    owner = _tape.owner(key)
    if owner is None:
        _tape.keys[layer] = key
        _tape.layers[layer] = KvLayer(heads=kv_heads, key_dim=key.shape[-1], value_dim=value_dim, window=int(window) if window else None)
    else:
        _tape.shared[layer] = owner
    if _tape.past is None:
        return query.new_zeros(batch, length, heads, value_dim), None

    sinks = () if options.get("s_aux") is None else (options["s_aux"],)
    shape = (batch, length, heads, value_dim)
    attributes = {
        "layer": layer,
        "scale": float(scaling if scaling is not None else dim**-0.5),
        "window": int(window) if window else 0,
        "softcap": float(softcap or 0),
    }
    if owner is not None:
        return emit("SharedAttention", (query, *_tape.present[owner], *sinks), shape, **attributes), None
    past_key, past_value = _tape.past[layer]
    inputs = (query, key, value, past_key, past_value, *sinks)
    mixed, new_key, new_value = emit_many("Attention", inputs, [shape, past_key.shape, past_value.shape], **attributes)
    _tape.present[layer] = (new_key, new_value)
    return mixed, None


AttentionInterface.register(IMPLEMENTATION, attention)
