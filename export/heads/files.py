"""The files of a draft head: a Hub id or a folder with a configuration and one file of tensors.

Published heads are safetensors or what ``torch.save`` wrote. The latter is a pickle, which can run code when it is read: torch is
asked for tensors alone (``weights_only``), and a file with anything else in it is refused.
"""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from edgespec.errors import CheckpointError
from edgespec.export.checkpoint.base import Origin
from edgespec.export.checkpoint.resolve import licence_of
from edgespec.export.checkpoint.safetensors_folder import INDEX, SINGLE, locate, open_safetensors, read_tensor
from edgespec.hub import download, is_hub_id, split_revision

ALWAYS = ["config.json", "README.md"]
MOST_CONFIG_BYTES = 2**20


class Tensors(Mapping[str, torch.Tensor]):
    """Tensors by their stored names, read when asked for, with all shapes known."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], read: Callable[[str], torch.Tensor]) -> None:
        self.shapes = dict(shapes)
        self._read = read

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.shapes:
            raise KeyError(name)
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def open_files(option: str, source: str, names: Sequence[str]) -> tuple[Origin, dict[str, Any], Tensors]:
    """The configuration, empty if there is none, and the tensors of a head.

    Args:
        option: as the user typed it, for messages.
        source: Hub id, perhaps with ``@revision`` behind it, or folder.
        names: files that may hold the tensors, the preferred one first.

    Raises:
        CheckpointError: nothing there, or no such file, or not readable without running code.
    """
    folder = Path(source).expanduser()
    if folder.is_file():
        raise CheckpointError(f"{option} {source}: is a file; give the folder that it is in")
    name, revision = source, None
    if not folder.is_dir():
        name, wanted = split_revision(source)
        if folder.is_absolute() or source.startswith((".", "~")) or not is_hub_id(name):
            raise CheckpointError(f"{option} {source}: no such folder")
        folder = download(name, [*ALWAYS, *names, "*.safetensors"], instead="a folder", revision=wanted)
        revision = folder.name
    origin = Origin(name, folder.absolute(), revision, licence_of(folder))
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise CheckpointError(f"{option} {source}: has none of {', '.join(names)}")
    if path.name in (INDEX, SINGLE):
        tensors = _safetensors(locate(folder))
    elif path.suffix == ".safetensors":
        tensors = _safetensors(dict.fromkeys(open_safetensors(path).keys(), path))
    else:
        tensors = _saved_by_torch(path)
    return origin, _config(folder / "config.json"), tensors


def _config(path: Path) -> dict[str, Any]:
    try:
        if not path.is_file():
            return {}
        if path.stat().st_size > MOST_CONFIG_BYTES:
            raise ValueError(f"larger than {MOST_CONFIG_BYTES} bytes")
        config = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError("not an object")
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not a configuration: {error}") from error
    return config


def _safetensors(files: Mapping[str, Path]) -> Tensors:
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(set(files.values())):
        with open_safetensors(path) as reader:
            try:
                shapes |= {name: tuple(reader.get_slice(name).get_shape()) for name, file in files.items() if file == path}
            except SafetensorError as error:
                raise CheckpointError(f"{path}: lacks a tensor of its index: {error}") from error
    return Tensors(shapes, lambda name: read_tensor(files[name], name))


def _saved_by_torch(path: Path) -> Tensors:
    try:
        # Only the zip archives that torch has written since 1.6 can be mapped.
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        raise CheckpointError(f"{path}: holds more than tensors, and reading it could run code; convert it to safetensors") from error
    except Exception as error:  # torch raises many kinds for a damaged file
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"{path}: not a whole file of tensors: {reason[:200]}") from error
    if not isinstance(found, dict) or not all(isinstance(key, str) and isinstance(value, torch.Tensor) for key, value in found.items()):
        raise CheckpointError(f"{path}: is not a mapping from names to tensors")
    return Tensors({name: tuple(tensor.shape) for name, tensor in found.items()}, found.__getitem__)
