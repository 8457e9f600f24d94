"""Packed weights that are kept on disk, so that they are pages of a file and not memory of a process.

ONNX Runtime packs quantised weights into a layout for the processor at hand, each time that a session is made, and keeps the result
as private memory: more than the weights themselves. It can also save a graph together with its packs. A session made from
that file maps them: the system can drop such pages when it needs room, and all processes that run the bundle share one copy.

    cache folder/packs/KEY/      KEY from the bundle's hashes, ONNX Runtime's version, the processor's instruction set and the graphs
        packs.json               size, time and sha256 of each file
        NAME.onnx                graph of a model, as ONNX Runtime saved it
        packs.bin                weights and packs of all of them, equal bytes once

The folder is filled by a process of its own, under another name, and renamed when it is complete, so two that start at once do
no harm: one of them throws its work away. A file whose size or time is not the recorded one is hashed and, if it differs, all is
made again.
Nothing here is fatal: without a cache, packs are private memory.

ONNX Runtime takes a saved pack only if the one that it makes anew has the same bytes, up to the padding, which it does not
clear. So blocks have to come zeroed from the system: ``OWN_BLOCKS`` below is for that, and where the allocator is not glibc's the
packs would not be found again. That is tried when the cache is made, and then remembered.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgespec.bundle import bundle_key, hash_file
from edgespec.cache import cache_folder
from edgespec.manifest import Manifest
from edgespec.runtime.memory.measure import return_freed_memory
from edgespec.runtime.memory.weights import ORT_SUFFIX, GraphWeights
from edgespec.runtime.models.fused import target_graph
from edgespec.runtime.ort import import_onnxruntime
from edgespec.runtime.tuning.machine import machine_name

log = logging.getLogger(__name__)

FORMAT = 2
LIST = "packs.json"
OWN_BLOCKS = 2**16  # blocks from this size on are mapped on their own, and so are zeros
LEAST_BYTES = 16 * 10**6  # of packs; less is not worth files of its own
MOST_BYTES = 8 * 10**9  # of all bundles together; those that were not used for longest go first
SPARE_DISK = 10**9  # is left free
TIMEOUT_S = 600


def open_packs(bundle: Path, manifest: Manifest, weights: Mapping[str, GraphWeights]) -> dict[str, Path]:
    """Graphs with saved packs, by the model's name, made now if they are not there; none where that cannot be done."""
    graphs = {name: manifest.models[name].graph for name in weights} | {"target": target_graph(manifest)}
    if not are_useful(weights) or any(graph.endswith(ORT_SUFFIX) for graph in graphs.values()):
        return {}  # graphs in ONNX Runtime's own format cannot be saved anew
    try:
        folder = _root() / _key(bundle, [graphs[name] for name in sorted(graphs)])
        if not _is_whole(folder):
            _build(bundle, graphs, weights, folder)
        os.utime(folder)  # for the order in which bundles are forgotten
        return {name: folder / f"{name}.onnx" for name in weights} if (folder / "target.onnx").exists() else {}
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, subprocess.SubprocessError) as error:
        log.info("packed weights are not kept on disk: %s", error)
        return {}


def are_useful(weights: Mapping[str, GraphWeights]) -> bool:
    """Whether packs are large enough to be kept, and this system lets sessions find them again."""
    return sum(item.packed for item in weights.values()) >= LEAST_BYTES and _supported()


@contextlib.contextmanager
def zeroed_blocks(after: int) -> Iterator[None]:
    """Let sessions find saved packs. Afterwards blocks from ``after`` bytes on are mapped on their own."""
    return_freed_memory(threshold=OWN_BLOCKS)
    try:
        yield
    finally:
        return_freed_memory(threshold=after)


def forget_packs(graph: Path) -> None:
    """Remove the folder of a graph that cannot be used."""
    shutil.rmtree(graph.parent, ignore_errors=True)


def _supported() -> bool:
    """Whether the allocator is glibc's, and a Python can be started to make the packs."""
    try:
        glibc = os.confstr("CS_GNU_LIBC_VERSION") is not None
    except (AttributeError, ValueError):
        return False
    return glibc and bool(sys.executable) and not getattr(sys, "frozen", False)


def _root() -> Path:
    return cache_folder() / "packs"


def _key(bundle: Path, graphs: Sequence[str]) -> str:
    parts = (FORMAT, bundle_key(bundle), import_onnxruntime().__version__, machine_name(), *graphs)
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:24]


def _is_whole(folder: Path) -> bool:
    """Whether all files are there and are what they were. A folder that says that packs are not found again is whole, too."""
    try:
        listed: dict[str, dict[str, Any]] = json.loads((folder / LIST).read_text(encoding="utf-8"))["files"]
        for name, entry in listed.items():
            path = folder / Path(name).name
            status = path.lstat()
            if path.is_symlink() or status.st_size != entry["size"]:
                return False
            if status.st_mtime_ns != entry["time"] and hash_file(path) != entry["sha256"]:
                log.warning("%s: was changed by someone; the packed weights are made again", path)
                return False
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return True


def _build(bundle: Path, graphs: Mapping[str, str], weights: Mapping[str, GraphWeights], folder: Path) -> None:
    """Fill ``folder``, or leave nothing behind.

    Raises:
        OSError: the cache cannot be written, or there is too little room on its disk.
        RuntimeError, SubprocessError: ONNX Runtime cannot save its packs.
    """
    root = folder.parent
    root.mkdir(parents=True, exist_ok=True)
    size = _expected(weights)
    if size > MOST_BYTES:
        raise OSError(f"{root}: {size / 1e6:.0f} MB are more than the {MOST_BYTES / 1e6:.0f} MB that all bundles may take")
    _forget(root, MOST_BYTES - size, keep=folder)
    if shutil.disk_usage(root).free < size + SPARE_DISK:
        raise OSError(f"{root}: too little room for {size / 1e6:.0f} MB")
    started = time.monotonic()
    scratch = Path(tempfile.mkdtemp(dir=root, prefix=".making-"))
    try:
        paths = {name: str((bundle / graph).absolute()) for name, graph in graphs.items()}
        command = [sys.executable, "-m", "edgespec.runtime.memory.pack_build", str(scratch), json.dumps(paths)]
        environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(OWN_BLOCKS), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or ["no reason given"])[-1])
        if not json.loads(done.stdout)["found_again"]:
            log.info("packed weights are not found again on this machine, so they stay private memory")
            for path in scratch.iterdir():
                path.unlink()
        files = {path.name: _describe(path) for path in sorted(scratch.iterdir())}
        (scratch / LIST).write_text(json.dumps({"bundle": str(bundle), "files": files}, indent=1), encoding="utf-8")
        if _is_whole(folder):
            return  # another process was faster: its files are as good
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(scratch, folder)
        log.info("kept packed weights of %s in %s, in %.1f s", bundle, folder, time.monotonic() - started)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _expected(weights: Mapping[str, GraphWeights]) -> int:
    """Bytes that the files will have."""
    return sum(item.packed + item.kept + item.table + sum(matrix.data for matrix in item.matrices) for item in weights.values())


def _describe(path: Path) -> dict[str, Any]:
    status = path.stat()
    return {"size": status.st_size, "time": status.st_mtime_ns, "sha256": hash_file(path)}


def _forget(root: Path, room: int, keep: Path) -> None:
    """Remove what was left half-made long ago, and folders that were not used for longest until the rest takes ``room`` bytes."""
    for path in root.glob(".making-*"):
        if time.time() - path.stat().st_mtime > 2 * TIMEOUT_S:
            shutil.rmtree(path, ignore_errors=True)
    folders = [path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".") and path != keep]
    folders.sort(key=lambda path: path.stat().st_mtime)
    sizes = {path: _size(path.iterdir()) for path in folders}
    for path in folders:
        if sum(sizes.values()) <= room:
            break
        shutil.rmtree(path, ignore_errors=True)
        del sizes[path]


def _size(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths)
