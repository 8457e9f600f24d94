"""A GGUF file. Names and layouts are turned into transformers' by transformers' own tables.

llama.cpp stores the same tensors under other names and a few in another order (rotary dimensions of q and k, for
example). transformers knows both per architecture; what it does for all tensors at once is done here for one
tensor at a time, so that a file of any size needs the memory of its largest tensor.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGUFReader, dequantize
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

from edgespec.errors import CheckpointError, UnsupportedModelError
from edgespec.export.checkpoint.base import Checkpoint, Origin


class GgufCheckpoint(Checkpoint):
    """Tensors are read through a memory map and dequantised to float32 one at a time."""

    def __init__(self, origin: Origin, config: Any) -> None:
        super().__init__(origin, config)
        assert origin.gguf_file is not None
        self.path = origin.folder / origin.gguf_file
        reader = read_gguf(self.path)
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        architecture = gguf_architecture(reader, self.path)
        self._processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=config.to_dict())
        self._stored: dict[str, str] = {}

    def bind(self, model: torch.nn.Module) -> None:
        try:
            mapping = get_gguf_hf_weights_map(model, self._processor)
        except (NotImplementedError, KeyError) as error:
            raise UnsupportedModelError(f"{self.path}: no table of tensor names for this architecture: {error}") from error
        self._stored = {ours: theirs for theirs, ours in mapping.items() if theirs in self._tensors}

    def forget_header(self) -> None:
        # A vocabulary of 50,000 tokens takes 150 MB in the reader's form.
        read_gguf.cache_clear()

    def names(self) -> frozenset[str]:
        return frozenset(self._stored)

    def __getitem__(self, name: str) -> torch.Tensor:
        stored = self._stored[name]
        tensor = self._tensors[stored]
        try:
            values = dequantize(tensor.data, tensor.tensor_type)
        except (NotImplementedError, ValueError) as error:
            raise CheckpointError(f"{self.path}: tensor {stored} has type {tensor.tensor_type!r}, which cannot be read: {error}") from error
        result = self._processor.process(weights=values, name=stored, tensor_key_mapping={stored: name}, parsed_parameters={"tensors": {}})
        return torch.from_numpy(np.require(result.weights, np.float32, ["C", "W"]))


@functools.lru_cache(maxsize=1)
def read_gguf(path: Path) -> GGUFReader:
    """Open a GGUF file; CheckpointError when it is truncated or no GGUF."""
    try:
        reader = GGUFReader(path)
        for tensor in reader.tensors:
            if tensor.data.nbytes != tensor.n_bytes:
                raise ValueError(f"tensor {tensor.name} is cut short")
    except (ValueError, IndexError, KeyError, OverflowError, OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: not a whole GGUF file: {error}") from error
    return reader


@contextlib.contextmanager
def header_parsed_once(path: Path) -> Iterator[None]:
    """Let transformers use the reader that is open already: it parses the header anew for the configuration and again
    for the tokenizer, which takes seconds each time for a vocabulary of 50,000 tokens."""
    original = gguf.GGUFReader
    gguf.GGUFReader = lambda *_: read_gguf(path)
    try:
        yield
    finally:
        gguf.GGUFReader = original


def gguf_architecture(reader: GGUFReader, path: Path) -> str:
    """``general.architecture`` of the file."""
    value = gguf_text(reader, "general.architecture")
    if value is None:
        raise CheckpointError(f"{path}: has no general.architecture")
    return value


def gguf_text(reader: GGUFReader, key: str) -> str | None:
    """A text field of the header, None when it has none."""
    field = reader.get_field(key)
    if field is None:
        return None
    value = field.contents()
    return value if isinstance(value, str) else None
