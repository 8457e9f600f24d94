"""Copying a bundle from a file picker: manifest first, then the files that it names, each verified as it is copied.

A picker gives names and streams, not paths. What it gives comes from strangers: names are the manifest's own, sizes are held to it,
and the folder appears under its name only when every hash was right.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from edgespec.errors import BundleError, CapacityError, UsageError
from edgespec.files import take_place
from edgespec.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, BundleFile, read_manifest

CHUNK = 2**20
SPARE_BYTES = 64 * 2**20  # left free on the device
Open = Callable[[], BinaryIO]
Progress = Callable[[str, int, int], None]


class Cancelled(Exception):
    """The import was stopped."""


def import_bundle(
    sources: Mapping[str, Open], bundles: Path, name: str, *, progress: Progress, stopped: Callable[[], bool] = lambda: False
) -> Path:
    """Copy the bundle that ``sources`` hold to ``bundles/name``.

    Args:
        sources: what opens each file, by its name.
        bundles: the folder of bundles.
        name: what to call it; an existing one of this name is replaced at the end.
        progress: told of file, bytes copied so far and bytes in all.
        stopped: asked between chunks.

    Raises:
        BundleError: not a bundle, damaged, incomplete, or of a newer version.
        CapacityError: not enough storage.
        UsageError: a name that cannot be one of a folder.
        Cancelled: it was stopped.
    """
    target = bundles / safe_name(name)
    if MANIFEST_NAME not in sources:
        raise BundleError(f"{name}: not a bundle, it has no {MANIFEST_NAME}")
    bundles.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".import.", dir=bundles))
    try:
        _copy_manifest(sources[MANIFEST_NAME], staging / MANIFEST_NAME)
        manifest = read_manifest(staging)
        for entry in manifest.files:
            if entry.name not in sources:
                raise BundleError(f"{name}: {entry.name} is missing from it; copy the whole folder")
        total, done = sum(entry.size for entry in manifest.files), 0
        _need_room(bundles, total)
        for entry in manifest.files:
            _copy(sources[entry.name], entry, staging, functools.partial(_tell, progress, entry.name, done, total), stopped)
            done += entry.size
        take_place(staging, target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target


def safe_name(name: str) -> str:
    """``name`` as that of a folder, hidden ones and separators left out.

    Raises:
        UsageError: nothing is left of it.
    """
    cleaned = "".join(char if char.isalnum() or char in "._- " else "_" for char in name).strip(". ")[:80]
    if not cleaned:
        raise UsageError(f"{name!r} is no name for a bundle")
    return cleaned


def _tell(progress: Progress, name: str, before: int, total: int, size: int) -> None:
    progress(name, before + size, total)


def _copy_manifest(source: Open, path: Path) -> None:
    with source() as file:
        data = file.read(MAX_MANIFEST_BYTES + 1)
    if len(data) > MAX_MANIFEST_BYTES:
        raise BundleError(f"{MANIFEST_NAME}: too large, so not a manifest")
    path.write_bytes(data)


def _copy(source: Open, entry: BundleFile, folder: Path, progress: Callable[[int], None], stopped: Callable[[], bool]) -> None:
    digest, size = hashlib.sha256(), 0
    with source() as incoming, (folder / entry.name).open("wb") as outgoing:
        while chunk := incoming.read(CHUNK):
            if stopped():
                raise Cancelled
            size += len(chunk)
            if size > entry.size:
                break
            digest.update(chunk)
            outgoing.write(chunk)
            progress(size)
        outgoing.flush()
        os.fsync(outgoing.fileno())
    if size != entry.size:
        raise BundleError(f"{entry.name}: has {'more' if size > entry.size else 'fewer'} bytes than the manifest says; copy it again")
    if digest.hexdigest() != entry.sha256:
        raise BundleError(f"{entry.name}: damaged, its sha256 is not the manifest's; copy it again")


def _need_room(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < size + SPARE_BYTES:
        missing = (size + SPARE_BYTES - free) / 1e6
        raise CapacityError(f"Not enough storage: the bundle has {size / 1e6:.0f} MB; free {missing:.0f} MB more.")
