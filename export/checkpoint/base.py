"""What the exporter asks of a checkpoint: a configuration and tensors by name, read one at a time."""

from __future__ import annotations

import abc
import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from edgespec.errors import CheckpointError
from edgespec.export.quantise.blockwise import Quantised
from edgespec.export.recipe import Recipe

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where a checkpoint came from, for the manifest. ``folder`` holds its configuration and tokenizer."""

    name: str
    folder: Path
    revision: str | None = None
    licence: str | None = None
    gguf_file: str | None = None

    def load(self, loader: Callable[..., Any], *, trust_remote_code: bool = False) -> Any:
        """``loader(folder, ...)``, a ``from_pretrained`` of transformers, on these files and without the network."""
        if self.gguf_file is None:
            return loader(str(self.folder), local_files_only=True, trust_remote_code=trust_remote_code)
        from edgespec.export.checkpoint.gguf_file import header_parsed_once

        with header_parsed_once(self.folder / self.gguf_file):
            return loader(str(self.folder), local_files_only=True, gguf_file=self.gguf_file)


class Checkpoint(Mapping[str, torch.Tensor], abc.ABC):
    """Tensors by their names in the transformers model's state dict. ``checkpoint[name]`` reads one tensor from disk.

    Being a mapping, it also serves accelerate as ``weights_map``, so that the original model runs in torch with one
    module's weights in memory at a time.
    """

    def __init__(self, origin: Origin, config: Any) -> None:
        self.origin = origin
        self.config = config

    @abc.abstractmethod
    def __getitem__(self, name: str) -> torch.Tensor: ...

    @abc.abstractmethod
    def names(self) -> frozenset[str]:
        """Names of all tensors."""

    @abc.abstractmethod
    def unused(self) -> list[str]:
        """Stored tensors that the bound model has no place for, by their stored names."""

    @abc.abstractmethod
    def stored_shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor as it is stored, None where it is made of others, packed, or not there."""

    def check_shape(self, name: str, found: Sequence[int], wanted: Sequence[int]) -> None:
        """Refuse a tensor of another shape than the model's parameter.

        Raises:
            CheckpointError: it is.
        """
        if tuple(found) != tuple(wanted):
            raise CheckpointError(f"{self.origin.name}: tensor {name} has shape {list(found)} where its configuration says {list(wanted)}")

    def bind(self, model: torch.nn.Module) -> None:
        """Learn the model's own tensor names, for formats that use others. Called once, before any tensor is read."""

    def owner(self, recipe: Recipe) -> tuple[Checkpoint, Recipe]:
        """The checkpoint that the tensors of ``recipe`` belong to, and the recipe with the names that they have there."""
        return self, recipe

    def end_ids(self) -> set[int]:
        """Ids that the checkpoint's own header says end a text or a turn, besides those of its configuration files."""
        return set()

    def forget_header(self) -> None:
        """Free what was kept for loading the configuration and the tokenizer; tensors can still be read."""

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.names()))

    def __len__(self) -> int:
        return len(self.names())

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def config_copy(self) -> Any:
        config = copy.deepcopy(self.config)
        if hasattr(config, "quantization_config"):
            del config.quantization_config  # the model is built for float weights, whatever they are stored as
        return config

    def quantised(self, name: str) -> Quantised | None:  # noqa: ARG002 (for formats that store whole numbers)
        """The tensor exactly as the checkpoint stores it, in the kernels' layout; None where that is not possible."""
        return None

    @property
    def is_quantised(self) -> bool:
        """Whether weights are stored as whole numbers, in a form that the kernels know or not."""
        return getattr(self.config, "quantization_config", None) is not None

    def read_float(self, name: str) -> torch.Tensor:
        """The tensor as float32.

        Raises:
            CheckpointError: it is missing, or has values that are not finite.
        """
        try:
            tensor = self[name]
        except KeyError as error:
            raise CheckpointError(f"{self.origin.name}: has no tensor {name}; the checkpoint is incomplete") from error
        if tensor.dtype not in FLOATS:
            raise CheckpointError(f"{self.origin.name}: tensor {name} is of type {tensor.dtype}, quantised in a form that cannot be read")
        tensor = tensor.to(torch.float32)
        # aminmax lets NaN through and, unlike isfinite, needs no memory of the tensor's size.
        if tensor.numel() and not all(bool(torch.isfinite(extreme)) for extreme in torch.aminmax(tensor)):
            raise CheckpointError(f"{self.origin.name}: tensor {name} has values that are not finite")
        return tensor
