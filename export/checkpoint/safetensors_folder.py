"""A Hugging Face checkpoint folder: ``*.safetensors``, in one file or sharded by an index."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel

from edgespec.errors import CheckpointError
from edgespec.export.checkpoint.base import Checkpoint, Origin
from edgespec.export.checkpoint.packed import Packed, find_format, read_packed
from edgespec.export.checkpoint.renaming import Conversion, find_renaming
from edgespec.export.quantise.blockwise import Quantised

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
FILE_NAME = re.compile(r"[\w][\w.-]{0,200}")


class SafetensorsCheckpoint(Checkpoint):
    """Reads tensors lazily. A file is opened for every read: one kept open stays mapped, and in the end all of the model is in memory."""

    def __init__(self, origin: Origin, config: Any) -> None:
        super().__init__(origin, config)
        self._files = locate(origin.folder)
        self._aliases: dict[str, str] = {}
        self._conversions: dict[str, Conversion] = {}
        self._unused: list[str] = []
        self._shapes: dict[str, tuple[int, ...]] = {}
        """What the model's configuration says, by its own names."""
        self._format = find_format(config, origin.name)
        # Names of weights that are stored as whole numbers, with the module that they belong to.
        self._modules: dict[str, str] = {}
        if self._format is not None:
            for stored in self._files:
                module = self._format.module(stored)
                if module is not None and any(module + part in self._files for part in self._format.parts):
                    self._modules[self._format.weight(module)] = module

    def names(self) -> frozenset[str]:
        return frozenset(self._files) | frozenset(self._modules) | frozenset(self._aliases) | frozenset(self._conversions)

    def bind(self, model: torch.nn.Module) -> None:
        assert isinstance(model, PreTrainedModel)
        self._shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}
        found = find_renaming(model, [*self._modules, *(name for name in self._files if name not in self._modules)])
        self._aliases, self._conversions = found.aliases, found.conversions
        taken = {*model.state_dict(), *found.aliases.values()}
        taken.update(part for made in found.conversions.values() for parts in made.parts.values() for part in parts)
        self._unused = sorted(name for name in self._files if name not in taken and not self._is_part(name, taken))

    def _is_part(self, stored: str, taken: set[str]) -> bool:
        """Whether ``stored`` is a part of a packed matrix that the model takes."""
        if self._format is None:
            return False
        suffixes = (*self._format.suffixes, *self._format.parts)
        weights = (self._format.weight(stored.removesuffix(suffix)) for suffix in suffixes if stored.endswith(suffix))
        return any(weight in self._modules and weight in taken for weight in weights)

    def unused(self) -> list[str]:
        return self._unused

    def stored_shape(self, name: str) -> tuple[int, ...] | None:
        stored = self._aliases.get(name, name)
        if name in self._conversions or stored in self._modules or stored not in self._files:
            return None
        try:
            return tuple(open_safetensors(self._files[stored]).get_slice(stored).get_shape())
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{self._files[stored]}: tensor {stored} cannot be read: {error}") from error

    def __getitem__(self, name: str) -> torch.Tensor:
        conversion = self._conversions.get(name)
        if conversion is not None and name not in self._files:
            return conversion.make(name, self._read)
        stored = self._aliases.get(name, name)
        values = self._read(stored)
        if stored in self._modules:
            self._check_unpacked(name, values)
        return values

    def quantised(self, name: str) -> Quantised | None:
        stored = self._aliases.get(name, name)
        packed = self._packed(stored) if stored in self._modules else None
        if not isinstance(packed, Packed):
            return None
        self._check_unpacked(name, packed.codes)
        return packed.quantised()

    def _check_unpacked(self, name: str, values: torch.Tensor) -> None:
        """Only what is unpacked shows the shape of what is packed."""
        if name in self._shapes:
            self.check_shape(name, values.shape, self._shapes[name])

    def _packed(self, stored: str) -> Packed | torch.Tensor:
        assert self._format is not None
        return read_packed(self._format, self._modules[stored], self._files, self._raw, self.origin.name)

    def _read(self, stored: str) -> torch.Tensor:
        if stored not in self._modules:
            return self._raw(stored)
        packed = self._packed(stored)
        return packed.values() if isinstance(packed, Packed) else packed

    def _raw(self, stored: str) -> torch.Tensor:
        return read_tensor(self._files[stored], stored)


def open_safetensors(path: Path) -> Any:
    """A reader of one file; CheckpointError when it is missing, truncated or no safetensors file."""
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: missing; the checkpoint is incomplete, download it again") from error
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: not a whole safetensors file: {error}") from error


def read_tensor(path: Path, name: str) -> torch.Tensor:
    """A tensor of one file, by its stored name; CheckpointError when it is not there or not whole."""
    try:
        with open_safetensors(path) as reader:
            tensor: torch.Tensor = reader.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: tensor {name} cannot be read: {error}") from error
    return tensor


def locate(folder: Path) -> dict[str, Path]:
    """The file of each tensor."""
    index = folder / INDEX
    if index.is_file():
        try:
            weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            files = {str(name): folder / file for name, file in weight_map.items() if FILE_NAME.fullmatch(file)}
            if len(files) != len(weight_map):
                raise ValueError("a tensor is in a file whose name is none")
        except (ValueError, KeyError, AttributeError, TypeError, IndexError, RecursionError) as error:
            raise CheckpointError(f"{index}: not an index of safetensors files: {error}") from error
        for path in sorted(set(files.values())):
            if not path.is_file():
                raise CheckpointError(f"{path}: missing; the checkpoint is incomplete, download it again")
        return files
    single = folder / SINGLE
    if single.is_file():
        return dict.fromkeys(open_safetensors(single).keys(), single)
    others = sorted(path.name for path in folder.glob("*.bin"))
    hint = f"; it has {others[0]}, convert it with save_pretrained of transformers" if others else ""
    raise CheckpointError(f"{folder}: has no {SINGLE} and no {INDEX}{hint}")
