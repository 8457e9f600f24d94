"""Opening a bundle: its manifest, and files that are what the manifest says.

A bundle is a folder of plain files. Nothing in it is executed, and no path in it leads out of it: the manifest holds
plain file names, and a listed file that is a symbolic link is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from edgespec.errors import BundleError
from edgespec.manifest import MANIFEST_NAME, BundleFile, Manifest, read_manifest

CHUNK = 2**20


def hash_file(path: Path, on_bytes: Callable[[int], None] | None = None) -> str:
    """sha256 of a file in lower-case hex; ``on_bytes`` is told of each chunk's size, for a progress bar."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            if on_bytes:
                on_bytes(len(chunk))
    return digest.hexdigest()


def describe_file(path: Path) -> BundleFile:
    """The manifest's entry for a file."""
    return BundleFile(name=path.name, size=path.stat().st_size, sha256=hash_file(path))


def open_bundle(bundle: Path) -> Manifest:
    """Read the manifest and check that every listed file is there, is a regular file and has the listed size.

    Hashes take about a second per gigabyte, so they are checked by :func:`check_hashes` and not at every start.
    """
    manifest = read_manifest(bundle)
    for entry in manifest.files:
        path = bundle / entry.name
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise BundleError(f"{path}: is a link or a folder, not a file of the bundle; copy the bundle again")
        if not path.exists():
            raise BundleError(f"{path}: missing from the bundle; copy or export it again")
        size = path.stat().st_size
        if size != entry.size:
            raise BundleError(f"{path}: has {size} bytes where the manifest says {entry.size}; copy or export it again")
    return manifest


def check_hashes(bundle: Path, manifest: Manifest, on_bytes: Callable[[int], None] | None = None) -> None:
    """Compare every file with its sha256 in the manifest.

    Raises:
        BundleError: names the first file that differs.
    """
    for entry in manifest.files:
        path = bundle / entry.name
        try:
            found = hash_file(path, on_bytes)
        except OSError as error:
            raise BundleError(f"{path}: cannot be read: {error.strerror}") from error
        if found != entry.sha256:
            raise BundleError(f"{path}: its sha256 is {found[:12]}… where the manifest says {entry.sha256[:12]}…; copy or export it again")


def bundle_key(bundle: Path) -> str:
    """A short name for the bundle's exact content: the head of its manifest's sha256, since that lists every file's hash."""
    return hash_file(bundle / MANIFEST_NAME)[:16]
