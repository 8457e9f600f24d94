"""What was measured on this machine for a bundle, kept in the user's cache so that it is measured once.

An entry belongs to one bundle (by content), machine, version of ONNX Runtime, thread count and providers. One that
cannot be read, or that does not look right, is measured again.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

from edgespec.cache import read_json, write_json
from edgespec.runtime.exactness import Exactness

FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Calibration:
    """``target_ms``: milliseconds of a target pass by width. ``draft_ms``: of one draft step, by drafter."""

    exactness: Exactness
    target_ms: dict[int, float]
    draft_ms: dict[str, float]


def cache_name(parts: Sequence[object]) -> str:
    """File name of the entry for what ``parts`` identify."""
    digest = hashlib.sha256("\n".join(map(str, (FORMAT, *parts))).encode()).hexdigest()[:24]
    return f"calibration-{digest}.json"


def read(name: str) -> Calibration | None:
    """The entry ``name``, None if there is none or it is damaged."""
    data = read_json(name)
    try:
        return _decode(data) if data is not None else None
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def write(name: str, calibration: Calibration) -> None:
    """Store the entry; a cache that cannot be written only means that the next start measures again."""
    write_json(name, dataclasses.asdict(calibration))


def _decode(data: dict[str, Any]) -> Calibration:
    found = data["exactness"]
    exactness = Exactness(
        str(found["grade"]), tuple(map(int, found["widths"])), float(found["difference"]), tuple(map(int, found["lengths"]))
    )
    target = {int(width): float(ms) for width, ms in data["target_ms"].items()}
    draft = {str(name): float(ms) for name, ms in data["draft_ms"].items()}
    widths = exactness.widths
    sound = exactness.grade in ("exact", "near") and widths and list(widths) == sorted(set(widths)) and widths[0] >= 1
    if not sound or not target or min([*target.values(), *draft.values()]) <= 0:
        raise ValueError("not a calibration")
    return Calibration(exactness, target, draft)
