"""The little of protobuf's encoding that reading and changing an ONNX file takes, without the onnx package.

A message is a sequence of fields: a key (number and kind), then a whole number or, with their length before them, the bytes of a
text or of another message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

VARINT, FIXED_64, BYTES, FIXED_32 = 0, 1, 2, 5

Value = int | memoryview
Change = Callable[[memoryview], bytes]


def fields(data: Value) -> Iterator[tuple[int, Value]]:
    """Number and value of each field: a whole number, or the bytes of a text or message.

    Raises:
        ValueError, IndexError: ``data`` is no message.
    """
    for number, value, _ in _encoded(data):
        yield number, value


def change(data: memoryview, changes: Mapping[int, Change]) -> bytes:
    """The message with its fields of some numbers, which have to be texts or messages, changed."""
    parts: list[bytes | memoryview] = []
    for number, value, encoded in _encoded(data):
        if number in changes and not isinstance(value, int):
            parts.append(field(number, changes[number](value)))
        else:
            parts.append(encoded)
    return b"".join(parts)


def field(number: int, value: bytes) -> bytes:
    """A text or message as a field."""
    return _encode(number << 3 | BYTES) + _encode(len(value)) + value


def text(value: Value) -> str:
    if isinstance(value, int):
        raise ValueError("a number where a text is expected")
    return str(value, "utf-8")


def varints(data: memoryview) -> Iterator[int]:
    """Numbers that are packed into one field."""
    position = 0
    while position < len(data):
        value, position = _varint(data, position)
        yield value


def _encoded(data: Value) -> Iterator[tuple[int, Value, memoryview]]:
    """As :func:`fields`, with the whole field as it is encoded."""
    if isinstance(data, int):
        raise ValueError("a number where a message is expected")
    position, end = 0, len(data)
    while position < end:
        start = position
        key, position = _varint(data, position)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            whole, position = _varint(data, position)
            yield number, whole, data[start:position]
            continue
        size = {FIXED_64: 8, FIXED_32: 4}.get(kind, -1)
        if kind == BYTES:
            size, position = _varint(data, position)
        if size < 0 or position + size > end:
            raise ValueError("a field that is cut off or of no known kind")
        yield number, data[position : position + size], data[start : position + size]
        position += size


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("a number that is too long")


def _encode(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
