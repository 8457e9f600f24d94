"""Is a checkpoint all of the model, and nothing else? Asked before any work.

A tensor without a place is as bad as a place without a tensor: scales of quantised weights or factors of rotary frequencies,
left out in silence, make another model.
"""

from __future__ import annotations

import re

import torch
from transformers import PreTrainedModel

from edgespec.errors import CheckpointError
from edgespec.export.checkpoint.base import Checkpoint

# Buffers that old releases saved and new ones compute, and heads that predict further tokens than the next.
HARMLESS = re.compile(r"inv_freq|masked_bias|attn\.bias|attention\.bias|position_ids|(^|\.)mtp[._]|nextn|num_batches_tracked")


def check_complete(checkpoint: Checkpoint, model: PreTrainedModel, tied: dict[str, str]) -> None:
    """Compare a bound checkpoint with its model: names and shapes.

    Raises:
        CheckpointError: names the first tensor that is missing, unexpected, or of another shape than the configuration says.
    """
    name = checkpoint.origin.name
    allowed = [re.compile(pattern) for pattern in (getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ())]
    for stored in checkpoint.unused():
        if not HARMLESS.search(stored) and not any(pattern.search(stored) for pattern in allowed):
            raise CheckpointError(
                f"{name}: has a tensor {stored} that {type(model).__name__} has no place for; either it is quantised in a form that "
                "cannot be read, or its configuration is not its own"
            )
    for parameter, value in model.named_parameters():
        first = tied.get(parameter, parameter)
        if first not in checkpoint:
            raise CheckpointError(f"{name}: has no tensor {first}; the checkpoint is incomplete")
        shape = checkpoint.stored_shape(first)
        if shape is not None:
            checkpoint.check_shape(first, shape, value.shape)


def is_untied(checkpoint: Checkpoint, tied: dict[str, str]) -> bool:
    """Whether the checkpoint has different values for tensors that the configuration ties. transformers then keeps them apart."""
    pairs = [(parameter, first) for parameter, first in tied.items() if parameter != first]
    return any(
        parameter in checkpoint and first in checkpoint and not torch.equal(checkpoint[parameter], checkpoint[first])
        for parameter, first in pairs
    )
