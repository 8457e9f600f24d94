"""``nn.Embedding`` as one ``Embedding`` operator, so that it can share the bytes of a tied head.

Subclasses that call ``nn.Embedding.forward`` and go on from there (Gemma's scaled embedding) keep what they add.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from edgespec.export.trace.dialect import emit


@contextlib.contextmanager
def embedding_stand_in() -> Iterator[None]:
    """Replace the lookup of ``nn.Embedding`` itself while a model is traced."""
    original = nn.Embedding.forward

    def forward(self: nn.Embedding, ids: torch.Tensor) -> torch.Tensor:
        if ids.dim() != 2:
            return original(self, ids)
        return emit("Embedding", (ids, self.weight), (*ids.shape, self.embedding_dim))

    nn.Embedding.forward = forward  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        nn.Embedding.forward = original  # type: ignore[method-assign]
