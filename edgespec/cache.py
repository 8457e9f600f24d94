"""The user's cache folder: files that can be measured or made again, so that losing one costs seconds.

Nothing here is fatal. A folder that cannot be written and a file that cannot be read count as "not cached".
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from edgespec.files import whole


def cache_folder() -> Path:
    """``EDGESPEC_CACHE``, else the platform's place for caches. The folder need not exist."""
    if named := os.environ.get("EDGESPEC_CACHE"):
        return Path(named).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "edgespec" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "edgespec"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edgespec"


def read_json(name: str) -> dict[str, Any] | None:
    """The object stored as ``name`` (a plain file name), None when there is none that can be read."""
    try:
        data = json.loads((cache_folder() / name).read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def remove(name: str) -> None:
    """Forget what is stored as ``name``, if anything is."""
    with contextlib.suppress(OSError, RuntimeError):
        (cache_folder() / name).unlink(missing_ok=True)


def forget_oldest(pattern: str, keep: int) -> None:
    """Of the files whose names match ``pattern``, all but the ``keep`` that were written last."""
    with contextlib.suppress(OSError, RuntimeError):
        found = sorted(cache_folder().glob(pattern), key=lambda path: path.stat().st_mtime)
        for path in found[:-keep]:
            path.unlink(missing_ok=True)


def write(name: str, parts: Iterable[bytes | memoryview]) -> bool:
    """Store ``parts``, one behind the other, as ``name``, whole or not at all. False when the folder cannot be written."""
    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        with whole(folder / name, private=True) as file:
            for part in parts:
                file.write(part)
    except (OSError, RuntimeError):
        return False
    return True


def write_json(name: str, data: dict[str, Any]) -> bool:
    """Store ``data`` as ``name``, like :func:`write`."""
    return write(name, [json.dumps(data, indent=1).encode()])
