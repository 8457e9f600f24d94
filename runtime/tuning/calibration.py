"""What was measured on this machine for a bundle, kept in the user's cache so that it is measured once.

An entry belongs to one bundle (by content), machine, version of ONNX Runtime, thread count, providers and capacity. One
that cannot be read, or that does not look right, is measured again; so are costs that were measured on a busy machine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from edgespec.cache import read_json, remove, write_json
from edgespec.runtime.exactness import Exactness
from edgespec.runtime.tuning.acceptance import Acceptance
from edgespec.runtime.tuning.cost import Costs

FORMAT = 3
T = TypeVar("T", Exactness, Costs)


def cache_key(parts: Sequence[object]) -> str:
    """Short name of what ``parts`` identify."""
    return hashlib.sha256("\n".join(map(str, (FORMAT, *parts))).encode()).hexdigest()[:24]


def exactness(key: str, measure: Callable[[], Exactness]) -> Exactness:
    """The stored result of the self-test, or a new one."""
    return _stored(f"exactness-{key}.json", _exactness_of) or _store(f"exactness-{key}.json", measure())


def forget_exactness(key: str) -> None:
    """Let the next :func:`exactness` measure."""
    remove(f"exactness-{key}.json")


def costs(key: str, measure: Callable[[], Costs]) -> Costs:
    """The stored costs, or new ones. Those of a busy machine serve now but not the next time."""
    return stored_costs(key) or _store(f"costs-{key}.json", measure())


def stored_costs(key: str) -> Costs | None:
    """What :func:`costs` would not measure again, if it is there."""
    return _stored(f"costs-{key}.json", _costs_of)


def forget_costs(key: str) -> None:
    """Let the next :func:`costs` measure."""
    remove(f"costs-{key}.json")


def acceptance(key: str) -> dict[str, Acceptance]:
    """What :func:`keep_acceptance` stored of drafters, empty if nothing."""
    found = {}
    for drafter, counts in (read_json(f"acceptance-{key}.json") or {}).items():
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            found[drafter] = Acceptance.of_counts(counts)
    return found


def keep_acceptance(key: str, found: Mapping[str, Acceptance]) -> bool:
    """Store what was learnt of drafters, for the next engine. False when the folder cannot be written."""
    return write_json(f"acceptance-{key}.json", {drafter: acceptance.as_counts() for drafter, acceptance in found.items()})


def forget_acceptance(key: str) -> None:
    """Let the next engine begin without knowing anything of drafters."""
    remove(f"acceptance-{key}.json")


def _stored(name: str, decode: Callable[[dict[str, Any]], T]) -> T | None:
    data = read_json(name)
    try:
        return decode(data) if data is not None else None
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _store(name: str, value: T) -> T:
    write_json(name, dataclasses.asdict(value))
    return value


def _exactness_of(data: dict[str, Any]) -> Exactness:
    widths, lengths = (tuple(map(int, data[name])) for name in ("widths", "lengths"))
    found = Exactness(str(data["grade"]), widths, float(data["difference"]), lengths, data["pads"] is True)
    if found.grade not in ("exact", "checked", "fast") or not widths or list(widths) != sorted(set(widths)) or widths[0] < 1:
        raise ValueError("not a result of the self-test")
    return found


def _costs_of(data: dict[str, Any]) -> Costs:
    target = {int(width): float(ms) for width, ms in data["target_ms"].items()}
    draft = {str(name): float(ms) for name, ms in data["draft_ms"].items()}
    first = {str(name): float(ms) for name, ms in data["first_ms"].items()}
    if data["quiet"] is not True or not target or not all(ms > 0 for ms in [*target.values(), *draft.values()]):
        raise ValueError("not costs to rely on")
    if not all(ms >= 0 for ms in first.values()):
        raise ValueError("not costs to rely on")
    return Costs(target, draft, True, first)
