"""Cache rows that were set aside: those of a conversation that waits while another one uses the engine, or on disk.

A file is a zip archive of numpy arrays (no pickles) and a header in JSON. It belongs to one bundle, by the hash of its
manifest, which lists the hash of every file. Rows that another machine, ONNX Runtime or thread count made would not be
the bits that this one makes, so they are left behind and computed again; the conversation itself is restored.
"""

from __future__ import annotations

import dataclasses
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgespec.errors import UsageError
from edgespec.files import whole

FORMAT = 1
MOST_HEADER_BYTES = 64 * 2**20

Rows = list[npt.NDArray[Any]]


@dataclasses.dataclass(frozen=True)
class Prefix:
    """Tokens and cache rows by model; ``made`` is the exactness under which the target's were computed."""

    tokens: dict[str, list[int]]
    rows: dict[str, Rows]
    made: str

    @property
    def size(self) -> int:
        """Bytes of the rows."""
        return sum(array.nbytes for rows in self.rows.values() for array in rows)


def save(path: Path, prefix: Prefix | None, bundle: str, machine: str, state: dict[str, Any]) -> None:
    """Write ``prefix`` and ``state`` (of JSON types) to ``path``, whole or not at all.

    Raises:
        UsageError: the file cannot be written.
    """
    header = {"format": FORMAT, "bundle": bundle, "machine": machine, "state": state}
    arrays: dict[str, npt.NDArray[Any]] = {}
    if prefix is not None:
        header |= {"tokens": prefix.tokens, "made": prefix.made}
        arrays = {f"{name}.{index}": array for name, rows in prefix.rows.items() for index, array in enumerate(rows)}
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    try:
        with whole(path, private=True) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from error


def restore(path: Path, bundle: str, machine: str) -> tuple[Prefix | None, dict[str, Any]]:
    """What :func:`save` wrote. There is no prefix if none was saved, or if its rows are not those of this machine.

    Raises:
        UsageError: the file is missing, damaged, or belongs to another bundle.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            if archive.zip.getinfo("header.npy").file_size > MOST_HEADER_BYTES:
                raise ValueError("the header is too large")
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.zip.infolist()):
                raise ValueError("it is compressed, and could be of any size")
            header = json.loads(archive["header"].tobytes())
            if header["format"] != FORMAT:
                raise UsageError(f"{path}: written in format {header['format']}, this edgespec reads {FORMAT}")
            if header["bundle"] != bundle:
                raise UsageError(f"{path}: belongs to another bundle; open it with the bundle that it was saved with")
            state = dict(header["state"])
            if header["machine"] != machine or "tokens" not in header:
                return None, state
            tokens = {str(name): [int(token) for token in ids] for name, ids in header["tokens"].items()}
            if "target" not in tokens:
                raise ValueError("it has no rows of the target")
            counts = {name: sum(key.startswith(f"{name}.") for key in archive.files) for name in tokens}
            rows = {name: [archive[f"{name}.{index}"] for index in range(count)] for name, count in counts.items()}
            return Prefix(tokens, rows, str(header["made"])), state
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such file") from error
    except (
        OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, EOFError, MemoryError, OverflowError, zipfile.BadZipFile
    ) as error:  # fmt: skip
        raise UsageError(f"{path}: not a saved conversation, or damaged: {error}") from error
