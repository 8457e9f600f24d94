"""Put the weights of saved graphs into one file.

ONNX Runtime saves each graph with a file of its own, in which every matrix is followed by its pack. Here they become one file for all
graphs, with equal bytes once: an early-exit draft then maps the very pages of the target. Packs lie next to one another,
since the system maps some of what lies around a page that is read, and behind them what is only read to be packed.

    scales and other small tensors | packs | matrices
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import mmap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from edgespec.runtime.memory.protobuf import change, field, fields, text
from edgespec.runtime.memory.weights import (
    ENTRY_KEY,
    ENTRY_VALUE,
    GRAPH_INITIALIZER,
    MODEL_GRAPH,
    TENSOR_EXTERNAL,
)

PAGE = 4096  # where ONNX Runtime aligns what it maps
PACKED = "prepacked_"

Span = tuple[int, int]
"""First byte and length."""


@dataclasses.dataclass(frozen=True)
class Stored:
    """An initializer outside of its graph file: its own bytes, and for each entry of packs its key and their bytes with what follows
    the length."""

    span: Span
    packs: Mapping[str, tuple[str, tuple[tuple[Span, str], ...]]]


class Merged:
    """The file that is being written, from those of ``weights``."""

    def __init__(self, file: BinaryIO, weights: Mapping[str, memoryview]) -> None:
        self._file = file
        self._weights = weights
        self._places: dict[bytes, int] = {}
        self._known: dict[tuple[str, Span], int] = {}

    def add(self, name: str, span: Span) -> int:
        """Where the bytes of ``span`` of a file of weights are in this one; they are written if they are not there yet."""
        if (name, span) not in self._known:
            self._known[name, span] = self._place(_slice(self._weights[name], span))
        return self._known[name, span]

    def _place(self, data: memoryview) -> int:
        digest = hashlib.sha256(data).digest()
        if digest not in self._places:
            self._file.write(bytes(-self._file.tell() % PAGE if len(data) >= PAGE else -self._file.tell() % 64))
            self._places[digest] = self._file.tell()
            self._file.write(data)
        return self._places[digest]


def merge(folder: Path, names: Sequence[str], into: str) -> None:
    """Replace ``NAME.bin`` of each name by one file ``into``, and change ``NAME.onnx`` accordingly.

    Raises:
        ValueError, KeyError, IndexError: a graph is not as ONNX Runtime saves it.
    """
    graphs = {name: memoryview((folder / f"{name}.onnx").read_bytes()) for name in names}
    weights = {name: _mapped(folder / f"{name}.bin") for name in names}
    stored = {name: [_stored(tensor) for tensor in _tensors(graph)] for name, graph in graphs.items()}
    with (folder / into).open("wb") as file:
        merged = Merged(file, weights)
        everything = [(name, tensor) for name in names for tensor in stored[name] if tensor is not None]
        for name, tensor in everything:
            if not tensor.packs:
                merged.add(name, tensor.span)
        for name, tensor in everything:
            for _, blobs in tensor.packs.values():
                for span, _ in blobs:
                    merged.add(name, span)
        for name, tensor in everything:
            merged.add(name, tensor.span)
        for name in names:
            (folder / f"{name}.onnx").write_bytes(_changed(graphs[name], functools.partial(merged.add, name), into))
    for name in names:
        weights[name].release()
        (folder / f"{name}.bin").unlink()


def _mapped(path: Path) -> memoryview:
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _slice(data: memoryview, span: Span) -> memoryview:
    if span[0] < 0 or span[0] + span[1] > len(data):
        raise ValueError("a tensor lies outside of its file")
    return data[span[0] : span[0] + span[1]]


def _tensors(graph: memoryview) -> list[memoryview]:
    inner = dict(fields(graph))[MODEL_GRAPH]
    return [value for number, value in fields(inner) if number == GRAPH_INITIALIZER and not isinstance(value, int)]


def _entries(tensor: memoryview) -> dict[str, str]:
    pairs = (dict(fields(value)) for number, value in fields(tensor) if number == TENSOR_EXTERNAL)
    return {text(pair[ENTRY_KEY]): text(pair[ENTRY_VALUE]) for pair in pairs}


def _stored(tensor: memoryview) -> Stored | None:
    """None for a tensor inside its graph file."""
    entries = _entries(tensor)
    if not entries:
        return None
    packs = {}
    for name, value in entries.items():
        if name.startswith(PACKED):
            key, *blobs = value.split("|")
            packs[name] = key, tuple(_blob(blob) for blob in blobs)
    return Stored((int(entries["offset"]), int(entries["length"])), packs)


def _blob(written: str) -> tuple[Span, str]:
    """``offset;length;more``"""
    offset, length, *more = written.split(";")
    return (int(offset), int(length)), ";".join(more)


def _changed(graph: memoryview, place: Callable[[Span], int], into: str) -> bytes:
    """``graph`` with the places in the merged file ``into``."""

    def tensor(value: memoryview) -> bytes:
        stored = _stored(value)
        if stored is None:
            return bytes(value)
        places = {"location": into, "offset": str(place(stored.span))}
        for name, (key, blobs) in stored.packs.items():
            written = (";".join([str(place(span)), str(span[1]), *([more] if more else [])]) for span, more in blobs)
            places[name] = "|".join([key, *written])

        def entry(pair: memoryview) -> bytes:
            found = dict(fields(pair))
            name = text(found[ENTRY_KEY])
            return field(ENTRY_KEY, name.encode()) + field(ENTRY_VALUE, places.get(name, text(found[ENTRY_VALUE])).encode())

        return change(value, {TENSOR_EXTERNAL: entry})

    return change(graph, {MODEL_GRAPH: lambda inner: change(inner, {GRAPH_INITIALIZER: tensor})})
