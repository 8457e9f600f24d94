"""Matrices that a checkpoint stores as whole numbers with scales: read as such, and passed on without rounding anew where that is exact.

    GPTQ                 qweight int32 [K * bits / 32, N], qzeros int32 [G, N * bits / 32], scales [G, N], g_idx [K]
    AWQ                  qweight int32 [K, N / 8], qzeros int32 [G, N / 8], scales [G, N]; eight columns interleaved
    compressed-tensors   weight_packed int32 [N, K * bits / 32] or weight int8 [N, K], weight_scale [N, G], weight_zero_point
    torchao              _weight_qdata int8 [N, K], _weight_scale [N, G], _weight_zero_point (a float one only for Int4Tensor)
    MXFP4                _blocks uint8 [E, N, K / 32, 16], _scales uint8 [E, N, K / 32]: the experts of gpt-oss, see :class:`Mxfp4`

N rows, K columns, G groups of columns that share a scale, E experts. All but the last, whose steps are uneven, become :class:`Packed`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection
from typing import Any

import torch

from edgespec.errors import CheckpointError, UnsupportedModelError
from edgespec.export.quantise.blockwise import Quantised
from edgespec.export.recipe import Scheme

BLOCKS = (128, 256, 64, 32, 16)  # that MatMulNBits knows, the preferred first
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
Read = Callable[[str], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Packed:
    """A matrix as whole numbers: weight[n, k] = scales[n, groups[k]] * (codes[n, k] - zeros[n, groups[k]]).

    ``codes`` ``[N, K]`` and ``zeros`` ``[N, G]`` are whole numbers from 0 on, ``scales`` float32 ``[N, G]``, ``groups`` int64 ``[K]``.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    groups: torch.Tensor
    bits: int

    def values(self) -> torch.Tensor:
        """float32 ``[N, K]``."""
        return self.scales[:, self.groups] * (self.codes.float() - self.zeros.float()[:, self.groups])

    @property
    def scheme(self) -> Scheme | None:
        """The scheme that holds it exactly; None where columns of a group do not lie together in blocks."""
        columns, groups = len(self.groups), self.scales.shape[1]
        size = -(-columns // groups)
        if not torch.equal(self.groups, torch.arange(columns) // size) or self.bits > 8:
            return None
        block = size if size in BLOCKS else next((block for block in BLOCKS if size % block == 0), None)
        return None if block is None else Scheme(4 if self.bits <= 4 else 8, block)

    def quantised(self) -> Quantised | None:
        """The same numbers in the layout of MatMulNBits."""
        scheme = self.scheme
        if scheme is None:
            return None
        rows, columns = self.codes.shape
        blocks = -(-columns // scheme.block)
        first = self.groups[:: scheme.block]  # each block's group
        scales, zeros = self.scales[:, first], self.zeros[:, first]
        codes = zeros.to(torch.uint8)[:, :, None].repeat(1, 1, scheme.block).flatten(1)  # columns that fill up are exact zeros
        codes[:, :columns] = self.codes
        return Quantised.of(scheme, columns, codes.view(rows, blocks, scheme.block), scales, zeros)


class Format:
    """How one method stores matrices. ``settings`` are the checkpoint's ``quantization_config``."""

    suffixes: tuple[str, ...]  # of the stored tensor that stands for a matrix; what is before it is the module's name
    parts: tuple[str, ...] = ()  # suffixes of the tensors beside it

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings

    def module(self, stored: str) -> str | None:
        """The name of the module whose weight ``stored`` holds."""
        for suffix in self.suffixes:
            if stored.endswith(suffix):
                return stored.removesuffix(suffix)
        return None

    def weight(self, module: str) -> str:
        """The name of a module's weight in the model."""
        return f"{module}.weight"

    def read(self, module: str, stored: Collection[str], read: Read) -> Packed | torch.Tensor:
        """The matrix as whole numbers, or as floats where it is none."""
        raise NotImplementedError


class Gptq(Format):
    suffixes, parts = (".qweight",), (".qzeros", ".scales", ".g_idx")

    def read(self, module: str, stored: Collection[str], read: Read) -> Packed:
        bits = int(self.settings.get("bits", 4))
        codes = unpack_int32(read(f"{module}.qweight").T, bits)  # [N, K]
        scales = read(f"{module}.scales").float().T.contiguous()
        zeros = unpack_int32(read(f"{module}.qzeros"), bits).T[: len(scales)]
        if self.settings.get("checkpoint_format", "gptq") == "gptq":
            zeros = (zeros + 1) & (2**bits - 1)  # the first version stores one less
        columns = codes.shape[1]
        size = int(self.settings.get("group_size", -1))
        size = columns if size < 1 else size
        groups = read(f"{module}.g_idx").long() if f"{module}.g_idx" in stored else torch.arange(columns) // size
        return Packed(codes, scales, zeros, groups, bits)


class Awq(Format):
    suffixes, parts = (".qweight",), (".qzeros", ".scales")

    def read(self, module: str, _stored: Collection[str], read: Read) -> Packed:
        if str(self.settings.get("version", "gemm")).lower() != "gemm":
            raise UnsupportedModelError(f"{module}: AWQ version {self.settings.get('version')} is not read; only gemm is")
        bits = int(self.settings.get("bits", self.settings.get("w_bit", 4)))
        codes, zeros = (_deinterleaved(unpack_int32(read(f"{module}.{part}"), bits)) for part in ("qweight", "qzeros"))
        size = int(self.settings.get("group_size", self.settings.get("q_group_size", 128)))
        groups = torch.arange(len(codes)) // (len(codes) if size < 1 else size)
        return Packed(codes.T.contiguous(), read(f"{module}.scales").float().T.contiguous(), zeros.T.contiguous(), groups, bits)


class CompressedTensors(Format):
    suffixes = (".weight_packed", ".weight")
    parts = (".weight_scale", ".weight_zero_point", ".weight_shape", ".weight_g_idx", ".input_scale", ".input_zero_point")

    def _weights_of(self, module: str) -> dict[str, Any]:
        """What is said of the module's weights. A group names modules, or patterns of their names, or classes, in this order of
        precedence; all matrices that are stored as whole numbers are of one class."""
        groups = [group for group in (self.settings.get("config_groups") or {}).values() if group.get("weights")]
        if len(groups) == 1:
            return dict(groups[0]["weights"])
        targets = [(str(target), group["weights"]) for group in groups for target in group.get("targets") or ()]
        named = [weights for target, weights in targets if target == module]
        named += [weights for target, weights in targets if target.startswith("re:") and re.match(target.removeprefix("re:"), module)]
        named += [weights for target, weights in targets if target == "Linear"]
        if not named:
            raise ValueError(f"no group of {len(groups)} is for it")
        return dict(named[0])

    def read(self, module: str, stored: Collection[str], read: Read) -> Packed:
        weights = self._weights_of(module)
        bits = int(weights.get("num_bits", 8))
        if weights.get("type", "int") != "int":
            raise UnsupportedModelError(f"{module}: compressed-tensors of type {weights.get('type')} are not read; only whole numbers are")
        scales = read(f"{module}.weight_scale").float()
        packed = f"{module}.weight_packed" in stored
        offset = 2 ** (bits - 1)
        if packed:
            rows, columns = (int(dim) for dim in read(f"{module}.weight_shape"))
            words = read(f"{module}.weight_packed")
            if tuple(words.shape) != (rows, -(-columns * bits // 32)):
                raise ValueError(f"{tuple(words.shape)} words are not {rows} x {columns} numbers of {bits} bits")
            codes = unpack_int32(words, bits)[:, :columns]
        else:
            numbers = read(f"{module}.weight")
            if numbers.dtype != torch.int8 or int(numbers.min()) < -offset or int(numbers.max()) >= offset:
                raise ValueError(f"weights of {numbers.dtype} are not whole numbers of {bits} bits")
            codes = (numbers.to(torch.int16) + offset).to(torch.uint8)
            rows, columns = codes.shape
        scales = scales.reshape(1, 1).expand(rows, 1) if scales.numel() == 1 else scales.reshape(rows, -1)
        zeros = torch.full(scales.shape, offset)
        if f"{module}.weight_zero_point" in stored:
            stored_zeros = read(f"{module}.weight_zero_point")
            if packed and stored_zeros.dtype == torch.int32:
                zeros = unpack_int32(stored_zeros.T, bits).T[:rows]  # packed along rows
            else:
                zeros = stored_zeros.reshape(-1, scales.shape[1]).expand(scales.shape).to(torch.int64) + offset
        size = -(-columns // scales.shape[1])
        if weights.get("strategy") == "group" and weights.get("group_size") not in (None, -1, size):
            raise ValueError(f"{scales.shape[1]} scales for {columns} columns are not groups of {weights['group_size']}")
        index = torch.arange(columns) // size
        if f"{module}.weight_g_idx" in stored:
            given = read(f"{module}.weight_g_idx").long()
            index = given if int(given.min()) >= 0 else index
        return Packed(codes, scales.contiguous(), zeros, index, bits)


class Torchao(Format):
    suffixes, parts = ("._weight_qdata",), ("._weight_scale", "._weight_zero_point")

    def read(self, module: str, stored: Collection[str], read: Read) -> Packed:
        data, scales = read(f"{module}._weight_qdata"), read(f"{module}._weight_scale").float()
        if data.dtype != torch.int8:
            raise UnsupportedModelError(f"{module}: torchao stores it as {data.dtype} in tiles; only int8 and unpacked int4 are read")
        rows, columns = data.shape
        scales = scales.reshape(rows, -1)
        zeros = torch.full(scales.shape, 128)
        if f"{module}._weight_zero_point" in stored:
            zeros = read(f"{module}._weight_zero_point").reshape(rows, -1).to(torch.int64) + 128
        codes = (data.to(torch.int16) + 128).to(torch.uint8)
        bits = 8
        if int(codes.min()) >= 120 and int(codes.max()) < 136 and int(zeros.min()) >= 120 and int(zeros.max()) < 136:
            codes, zeros, bits = codes - 120, zeros - 120, 4  # -8..7 fits 4 bits
        return Packed(codes, scales, zeros, torch.arange(columns) // -(-columns // scales.shape[1]), bits)


class Mxfp4(Format):
    """OCP microscaling (MX specification 1.0): 32 values of 4 bits share a power of two.

    A value has a sign, two bits of exponent and one of mantissa; the first of a byte is in its low half. A scale is an exponent plus 127,
    255 stands for NaN. The stored tensor is the transpose of the model's parameter, which has no ``.weight`` to its name.
    """

    suffixes, parts = ("_blocks",), ("_scales",)
    VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

    def weight(self, module: str) -> str:
        return module

    def read(self, module: str, _stored: Collection[str], read: Read) -> torch.Tensor:
        """float32 ``[E, K, N]``."""
        blocks, scales = read(f"{module}_blocks"), read(f"{module}_scales")
        if blocks.dtype != torch.uint8 or scales.dtype != torch.uint8 or blocks.shape != (*scales.shape, 16) or blocks.dim() != 4:
            raise ValueError(f"blocks {tuple(blocks.shape)} {blocks.dtype} and scales {tuple(scales.shape)} {scales.dtype} are no MXFP4")
        experts, rows = blocks.shape[:2]
        table = torch.tensor([*self.VALUES, *(-value for value in self.VALUES)])
        values = torch.empty(experts, blocks.shape[2] * 32, rows)
        for expert in range(experts):  # one at a time: what is unpacked takes eight times the memory
            codes = torch.stack([blocks[expert] & 0xF, blocks[expert] >> 4], -1).flatten(-2)
            factors = torch.where(scales[expert] == 255, torch.nan, torch.exp2(scales[expert].float() - 127))
            values[expert] = (table[codes.int()] * factors[..., None]).flatten(1).T
        return values


FORMATS: dict[str, type[Format]] = {
    "gptq": Gptq,
    "awq": Awq,
    "compressed-tensors": CompressedTensors,
    "torchao": Torchao,
    "mxfp4": Mxfp4,
}


def find_format(config: Any, where: str) -> Format | None:
    """The format that a configuration's ``quantization_config`` names, None for a float checkpoint."""
    settings = getattr(config, "quantization_config", None)
    if settings is None:
        return None
    settings = settings if isinstance(settings, dict) else settings.to_dict()
    method = str(settings.get("quant_method", settings.get("quantization_method", "")))
    method = method.rsplit(".", 1)[-1].lower().replace("_", "-")
    if method not in FORMATS:
        raise UnsupportedModelError(f"{where}: is quantised by {method or 'an unnamed method'}; read are {', '.join(FORMATS)} and GGUF")
    return FORMATS[method](settings)


def read_packed(form: Format, module: str, stored: Collection[str], read: Read, where: str) -> Packed | torch.Tensor:
    """One matrix, checked.

    Raises:
        CheckpointError: a part is missing, or parts do not fit each other or the configuration.
    """
    try:
        packed = form.read(module, stored, read)
    except KeyError as error:
        raise CheckpointError(f"{where}: {module}: has no tensor {error.args[0]}") from error
    except (RuntimeError, ValueError, TypeError, AttributeError, re.error) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"{where}: {module}: its tensors do not fit the quantization_config: {reason}") from error
    if isinstance(packed, torch.Tensor):
        return packed
    rows, columns = packed.codes.shape
    groups = packed.scales.shape[1] if packed.scales.dim() == 2 else 0
    fits = packed.scales.shape == packed.zeros.shape == (rows, groups) and len(packed.groups) == columns and groups
    top = max(int(packed.codes.max()), int(packed.zeros.max())) if fits else 0
    if not fits or int(packed.groups.min()) < 0 or int(packed.groups.max()) != groups - 1 or int(packed.zeros.min()) < 0 or top > 255:
        raise CheckpointError(
            f"{where}: {module}: its tensors do not fit the quantization_config: {rows} x {columns}, scales {tuple(packed.scales.shape)}"
            f" and zero points {tuple(packed.zeros.shape)}"
        )
    return packed


def unpack_int32(words: torch.Tensor, bits: int) -> torch.Tensor:
    """int32 ``[R, C]`` -> uint8 ``[R, C * 32 / bits]``, the lowest bits first."""
    if bits not in (2, 4, 8):
        raise ValueError(f"{bits} bits are not read; 2, 4 and 8 are")
    if words.dtype != torch.int32:
        raise ValueError(f"packed weights are {words.dtype}, not int32")
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    codes: torch.Tensor = ((words[:, :, None] >> shifts) & (2**bits - 1)).to(torch.uint8)
    return codes.flatten(1)


def _deinterleaved(codes: torch.Tensor) -> torch.Tensor:
    """AWQ's nibble i of a word is column ``AWQ_ORDER[i]`` of its eight."""
    inverse = [AWQ_ORDER.index(column) for column in range(8)]
    return codes.view(len(codes), -1, 8)[:, :, inverse].flatten(1)
