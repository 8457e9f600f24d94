"""What a graph file says about its weights, read without the onnx package: where they are, and which of them ONNX Runtime will
pack into a layout of its own.

Numbers of fields are those of onnx.proto.
"""

from __future__ import annotations

import dataclasses
import math
import mmap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from edgespec.errors import BundleError
from edgespec.runtime.memory.protobuf import fields, text, varints

ITEM_BYTES = {1: 4.0, 2: 1.0, 3: 1.0, 6: 4.0, 7: 8.0, 9: 1.0, 10: 2.0, 11: 8.0, 16: 2.0, 21: 0.5, 22: 0.5}  # TensorProto.DataType
MODEL_GRAPH = 7
GRAPH_NODE, GRAPH_INITIALIZER = 1, 5
NODE_INPUT, NODE_OPERATOR, NODE_ATTRIBUTE = 1, 4, 5
ATTRIBUTE_NAME, ATTRIBUTE_INTEGER, ATTRIBUTE_GRAPH = 1, 3, 6
TENSOR_DIMS, TENSOR_TYPE, TENSOR_NAME, TENSOR_EXTERNAL = 1, 2, 8, 13
ENTRY_KEY, ENTRY_VALUE = 1, 2
ORT_SUFFIX, ORT_NODES, ORT_QUERY_HEADS = ".ort", 1000, 32


@dataclasses.dataclass(frozen=True)
class Tensor:
    """An initializer. ``place`` is file name and offset of one outside the graph file; tensors may share one."""

    size: int
    shape: tuple[int, ...]
    place: tuple[str, int] | None


@dataclasses.dataclass(frozen=True)
class Matrix:
    """Weights [N, K] of a matrix product. ``bits`` is 32 for float; fewer are quantised in blocks of ``block_size`` along K."""

    rows: int
    columns: int
    bits: int = 32
    block_size: int = 0

    @property
    def data(self) -> int:
        """Bytes of the numbers alone. They are not looked at again once they are packed."""
        return self.rows * self.columns * self.bits // 8

    @property
    def packed(self) -> int:
        """Bytes of ONNX Runtime's own copy: the numbers, and for each block its scale and a sum for its zero point."""
        blocks = self.rows * -(-self.columns // self.block_size) if self.block_size else 0
        return self.data + 8 * blocks


@dataclasses.dataclass(frozen=True)
class GraphWeights:
    """The weights of one graph, in bytes where not said otherwise.

    Attributes:
        nodes: number of nodes; a session keeps some kilobytes for each.
        inline: tensors inside the graph file.
        kept: tensors outside it that stay mapped and are read at least once, such as scales; each place counted once.
        table: the embedding, of which a token reads one row.
        matrices: what is packed.
        query_heads: most heads of an attention layer.
    """

    nodes: int
    inline: int
    kept: int
    table: int
    matrices: tuple[Matrix, ...]
    query_heads: int

    @property
    def packed(self) -> int:
        return sum(matrix.packed for matrix in self.matrices)

    @property
    def largest(self) -> int:
        """The largest matrix before it is packed: while a session is made it is mapped beside its packed copy."""
        return max((matrix.data for matrix in self.matrices), default=0)

    @property
    def largest_packed(self) -> int:
        return max((matrix.packed for matrix in self.matrices), default=0)


@dataclasses.dataclass(frozen=True)
class _Node:
    operator: str
    inputs: tuple[str, ...]
    integers: Mapping[str, int]


def read_weights(graph: Path) -> GraphWeights:
    """Read ``graph``. Of one in ONNX Runtime's own format only the size is known: an upper estimate is made of it.

    Raises:
        BundleError: it is no ONNX graph.
    """
    if graph.suffix == ORT_SUFFIX:
        size = graph.stat().st_size
        return GraphWeights(ORT_NODES, inline=size, kept=0, table=0, matrices=(Matrix(size, 1, 8),), query_heads=ORT_QUERY_HEADS)
    tensors: dict[str, Tensor] = {}
    nodes: list[_Node] = []
    try:
        with graph.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        for number, value in fields(_only(data, MODEL_GRAPH)):
            if number == GRAPH_NODE:
                nodes.extend(_nodes(value))
            elif number == GRAPH_INITIALIZER:
                name, tensor = _tensor(value)
                tensors[name] = tensor
    except (ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
        raise BundleError(f"{graph}: is not an ONNX graph, or damaged; copy or export the bundle again") from error
    return _summary(tensors, nodes)


def _summary(tensors: Mapping[str, Tensor], nodes: Sequence[_Node]) -> GraphWeights:
    matrices: list[Matrix] = []
    tables: dict[tuple[str, int] | str, int] = {}
    elsewhere: set[tuple[str, int]] = set()
    """Places of numbers that are packed, or of the embedding."""
    for node in nodes:
        for matrix, name in _products(node, tensors):
            matrices.append(matrix)
            elsewhere |= {place for place in (tensors[name].place,) if place}
        if node.operator in ("Gather", "GatherBlockQuantized") and node.inputs[0] in tensors:
            table = tensors[node.inputs[0]]
            tables[table.place or node.inputs[0]] = table.size
            elsewhere |= {place for place in (table.place,) if place}
    kept = {tensor.place: tensor.size for tensor in tensors.values() if tensor.place and tensor.place not in elsewhere}
    return GraphWeights(
        nodes=len(nodes),
        inline=sum(tensor.size for tensor in tensors.values() if tensor.place is None),
        kept=sum(kept.values()),
        table=sum(tables.values()),
        matrices=tuple(matrices),
        query_heads=max((node.integers.get("num_heads", 0) for node in nodes if node.operator == "GroupQueryAttention"), default=0),
    )


def _products(node: _Node, tensors: Mapping[str, Tensor]) -> Iterator[tuple[Matrix, str]]:
    """The matrices that the node packs, each with its tensor's name."""
    if len(node.inputs) < 2 or node.inputs[1] not in tensors:
        return
    name = node.inputs[1]
    if node.operator == "MatMulNBits":
        number = node.integers
        yield Matrix(number["N"], number["K"], number.get("bits", 4), number["block_size"]), name
    elif node.operator in ("MatMul", "Gemm", "FusedMatMul") and len(tensors[name].shape) == 2:
        yield Matrix(*tensors[name].shape), name


def _nodes(data: int | memoryview) -> Iterator[_Node]:
    """A node, and those of the graphs in it."""
    operator, inputs, integers = "", [], {}
    for number, value in fields(data):
        if number == NODE_OPERATOR:
            operator = text(value)
        elif number == NODE_INPUT:
            inputs.append(text(value))
        elif number == NODE_ATTRIBUTE:
            attribute = dict(fields(value))
            inner = attribute.get(ATTRIBUTE_GRAPH, b"")
            if not isinstance(inner, int):
                yield from (node for part, item in fields(memoryview(inner)) if part == GRAPH_NODE for node in _nodes(item))
            if isinstance(found := attribute.get(ATTRIBUTE_INTEGER), int):
                integers[text(attribute[ATTRIBUTE_NAME])] = found
    yield _Node(operator, tuple(inputs), integers)


def _tensor(data: int | memoryview) -> tuple[str, Tensor]:
    shape: list[int] = []
    external: dict[str, str] = {}
    name, kind = "", 0
    for number, value in fields(data):
        if number == TENSOR_DIMS:
            shape.extend([value] if isinstance(value, int) else varints(value))
        elif number == TENSOR_TYPE and isinstance(value, int):
            kind = value
        elif number == TENSOR_NAME:
            name = text(value)
        elif number == TENSOR_EXTERNAL:
            entry = dict(fields(value))
            external[text(entry[ENTRY_KEY])] = text(entry[ENTRY_VALUE])
    place = (external["location"], int(external.get("offset", "0"))) if external else None
    return name, Tensor(int(math.prod(shape) * ITEM_BYTES.get(kind, 4.0)), tuple(shape), place)


def _only(data: memoryview, wanted: int) -> memoryview:
    """The last field of that number, which has to be a message."""
    found = dict(fields(data))[wanted]
    if isinstance(found, int):
        raise ValueError("a number where a message is expected")
    return found
