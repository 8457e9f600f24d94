"""JSON from strangers as dataclasses: every field is there, known and of its type, and an error names the field and the value."""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import types
import typing
from typing import Any

from edgespec.errors import BundleError

_hints = functools.cache(typing.get_type_hints)


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names differ: of a name given twice, two readers of the format might take different values."""
    names = dict(pairs)
    if len(names) != len(pairs):
        twice = collections.Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"{short(twice)} is given twice in one object")
    return names


def decode(kind: Any, value: Any, where: str, field: str) -> Any:
    """``value`` as ``kind``: a dataclass, tuple[X, ...], dict[str, X], X | None or a plain type."""

    def wrong(expected: str) -> BundleError:
        return BundleError(f"{where}: {field or 'manifest'}: expected {expected}, found {short(value)}")

    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise wrong("an object")
        hints = _hints(kind)
        prefix = f"{field}." if field else ""
        known = {entry.name: entry for entry in dataclasses.fields(kind)}
        for name in value:
            if name not in known:
                raise BundleError(f"{where}: {prefix}{short(name)}: unknown field")
        for name, entry in known.items():
            required = entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING
            if required and name not in value:
                raise BundleError(f"{where}: {prefix}{name}: missing")
        return kind(**{name: decode(hints[name], item, where, prefix + name) for name, item in value.items()})
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return None if value is None else decode(next(arg for arg in args if arg is not type(None)), value, where, field)
    if origin is tuple:
        if not isinstance(value, list):
            raise wrong("a list")
        return tuple(decode(args[0], item, where, f"{field}[{index}]") for index, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            raise wrong("an object")
        return {
            decode(str, key, where, f"{field} names"): decode(args[1], item, where, f"{field}.{plain(key)}") for key, item in value.items()
        }
    if kind is float and type(value) in (int, float):
        # NaN and Infinity are no JSON, though Python reads them, and 10**400 is a whole number that no float holds.
        if not -1e300 < value < 1e300:
            raise wrong("a finite number")
        return float(value)
    if type(value) is not kind:
        raise wrong({str: "text", int: "a whole number", float: "a number", bool: "true or false"}[kind])
    if kind is str and not _is_unicode(value):
        raise wrong("text")
    return value


def kind_of(value: object) -> str:
    """What JSON calls the type of ``value``."""
    return {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}.get(type(value), "a number")


def _is_unicode(text: str) -> bool:
    """Whether ``text`` can be written as UTF-8. JSON can smuggle in half of a surrogate pair, which cannot."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def plain(key: str) -> str:
    """``key`` as part of a field's name: as it is if that is harmless."""
    return key if key.isascii() and key.isprintable() and len(key) < 60 else short(key)


def short(value: object) -> str:
    """``value`` in an error message. Escaped, because it comes from a stranger and goes to a terminal."""
    text = json.dumps(value, default=str) if not isinstance(value, (dict, list)) else kind_of(value)
    return text if len(text) <= 60 else text[:57] + "..."
