"""A GGUF file. Names and layouts are turned into transformers' by transformers' own tables.

llama.cpp stores the same tensors under other names and a few in another order (rotary dimensions of q and k, for
example). transformers knows both per architecture; what it does for all tensors at once is done here for one
tensor at a time, so that a file of any size needs the memory of its largest tensor.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, dequantize
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, GPT2TensorProcessor, TensorProcessor, get_gguf_hf_weights_map

from edgespec.errors import CheckpointError, UnsupportedModelError
from edgespec.export.checkpoint import rope_factors
from edgespec.export.checkpoint.base import Checkpoint, Origin
from edgespec.export.checkpoint.packed import Packed
from edgespec.export.quantise.blockwise import Quantised


class GgufCheckpoint(Checkpoint):
    """Tensors are read through a memory map and dequantised to float32 one at a time."""

    def __init__(self, origin: Origin, config: Any) -> None:
        super().__init__(origin, config)
        assert origin.gguf_file is not None
        self.path = origin.folder / origin.gguf_file
        reader = read_gguf(self.path)
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        # An instruct model often ends its turns with another token than its texts.
        ends = (reader.get_field(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom"))
        self._end_ids = {int(field.contents()) for field in ends if field is not None}
        architecture = gguf_architecture(reader, self.path)
        self._processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=config.to_dict())
        self._stored: dict[str, str] = {}

    def bind(self, model: torch.nn.Module) -> None:
        try:
            mapping = get_gguf_hf_weights_map(model, self._processor)
        except (NotImplementedError, KeyError) as error:
            raise UnsupportedModelError(f"{self.path}: no table of tensor names for this architecture: {error}") from error
        self._stored = {ours: theirs for theirs, ours in mapping.items() if theirs in self._tensors}

    def unused(self) -> list[str]:
        return sorted(self._tensors.keys() - set(self._stored.values()) - {rope_factors.NAME})

    def stored_shape(self, name: str) -> tuple[int, ...] | None:
        stored = self._stored.get(name)
        if stored is None or type(self._processor) in TRANSPOSING:
            return None
        return tuple(int(dim) for dim in reversed(self._tensors[stored].shape))

    def end_ids(self) -> set[int]:
        return self._end_ids

    def forget_header(self) -> None:
        # A vocabulary of 50,000 tokens takes 150 MB in the reader's form.
        read_gguf.cache_clear()

    def names(self) -> frozenset[str]:
        return frozenset(self._stored)

    @property
    def is_quantised(self) -> bool:
        floats = {GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16}
        return any(tensor.tensor_type not in floats for tensor in self._tensors.values())

    def quantised(self, name: str) -> Quantised | None:
        stored = self._stored.get(name)
        if stored is None or self._tensors[stored].tensor_type not in EXACT:
            return None
        tensor = self._tensors[stored]
        bits, size, scale_of = EXACT[tensor.tensor_type]
        values = self[name]
        try:
            raw = scale_of(tensor.data.reshape(len(tensor.data), -1, GGML_QUANT_SIZES[tensor.tensor_type][1]))
            scales = torch.from_numpy(np.require(self._processed(raw, name, stored), np.float32, ["C", "W"]))
        except (ValueError, RuntimeError):
            return None
        if scales.dim() != 2 or scales.shape != (values.shape[0], -(-values.shape[1] // size)):
            return None  # its rows became columns
        groups = torch.arange(values.shape[1]) // size
        zeros = torch.full(scales.shape, 2 ** (bits - 1))
        # A weight is a whole number of scales, so dividing gives that number back.
        codes = (values / torch.where(scales == 0, 1.0, scales)[:, groups]).round_().add_(2 ** (bits - 1)).clamp_(0, 255).to(torch.uint8)
        packed = Packed(codes, scales, zeros, groups, bits)
        return packed.quantised() if torch.equal(packed.values(), values) else None

    def _processed(self, values: np.ndarray, name: str, stored: str) -> np.ndarray:
        """With rows in transformers' order."""
        result = self._processor.process(weights=values, name=stored, tensor_key_mapping={stored: name}, parsed_parameters={"tensors": {}})
        weights: np.ndarray = result.weights
        return weights

    def __getitem__(self, name: str) -> torch.Tensor:
        stored = self._stored[name]
        tensor = self._tensors[stored]
        try:
            values = dequantize(tensor.data, tensor.tensor_type)
        except (NotImplementedError, ValueError) as error:
            raise CheckpointError(f"{self.path}: tensor {stored} has type {tensor.tensor_type!r}, which cannot be read: {error}") from error
        return torch.from_numpy(np.require(self._processed(values, name, stored), np.float32, ["C", "W"]))


def _leading_scale(blocks: np.ndarray) -> np.ndarray:
    """Q4_0, Q5_0 and Q8_0 begin with their scale in half precision: uint8 ``[N, blocks, bytes]`` -> float32 ``[N, blocks]``."""
    return np.ascontiguousarray(blocks[:, :, :2]).view(np.float16)[:, :, 0].astype(np.float32)


def _q6_scales(blocks: np.ndarray) -> np.ndarray:
    """Q6_K ends with 16 int8 factors and a scale in half precision; float32 ``[N, blocks * 16]``."""
    scale = np.ascontiguousarray(blocks[:, :, 208:210]).view(np.float16).astype(np.float32)
    factors = np.ascontiguousarray(blocks[:, :, 192:208]).view(np.int8).astype(np.float32)
    return (scale * factors).reshape(len(blocks), -1)


TRANSPOSING = (GPT2TensorProcessor,)  # a stored shape is not the parameter's then
# Types without a minimum: every weight is a scale times a whole number. Bits, weights per scale, and where the scales are.
EXACT: dict[GGMLQuantizationType, tuple[int, int, Callable[[np.ndarray], np.ndarray]]] = {
    GGMLQuantizationType.Q4_0: (4, 32, _leading_scale),
    GGMLQuantizationType.Q5_0: (5, 32, _leading_scale),
    GGMLQuantizationType.Q8_0: (8, 32, _leading_scale),
    GGMLQuantizationType.Q6_K: (6, 16, _q6_scales),
}


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


def scaled_rope(reader: GGUFReader, config: Any, path: Path) -> dict[str, Any] | None:
    """transformers' ``rope_parameters`` where the file has factors for its rotary frequencies, else None.

    Raises:
        UnsupportedModelError: no published scaling gives these factors.
    """
    tensor = next((tensor for tensor in reader.tensors if tensor.name == rope_factors.NAME), None)
    if tensor is None:
        return None
    factors = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float64).reshape(-1)
    found = rope_factors.rope_parameters(factors, dict(config.rope_parameters))
    if found is None:
        raise UnsupportedModelError(
            f"{path}: scales its rotary frequencies ({rope_factors.NAME}) in a way that is not known; export from the original checkpoint"
        )
    return found
