"""Putting files and folders in their places so that they are there whole or not at all, also when the process is killed in between."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def whole(path: Path, *, synced: bool = False, private: bool = False) -> Iterator[BinaryIO]:
    """A file to write what ``path`` shall hold: a neighbour that takes its name on leaving, or disappears after an error.

    Args:
        path: in a folder that exists.
        synced: whether the bytes are on the disk before the name is: what cannot be had again survives a loss of power.
        private: whether its owner alone can read the file; otherwise who can is as the process has it for new files.

    Raises:
        OSError: the folder cannot be written, or the disk is full.
    """
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600 if private else 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            if synced:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def take_place(folder: Path, place: Path) -> None:
    """Rename ``folder`` to ``place``. A folder that is there stays until then, and if the new one cannot have its name.

    Raises:
        OSError: it cannot be renamed.
    """
    if not place.exists():
        folder.rename(place)
        return
    aside = place.with_name(f".{place.name}.old")
    shutil.rmtree(aside, ignore_errors=True)  # of a process that was killed here
    aside.mkdir()
    try:
        place.rename(aside / place.name)
        try:
            folder.rename(place)
        except BaseException:
            (aside / place.name).rename(place)
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def advice(error: OSError) -> str:
    """What to do about a file that could not be written, to go on behind what was wrong; nothing where that says it."""
    return "; free some space or choose another disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
