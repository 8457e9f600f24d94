"""Damaged files of weights: only our own errors, whatever the damage, and no memory that the file does not warrant."""

from __future__ import annotations

import contextlib
import json
import resource
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgespec.errors import EdgespecError
from edgespec.export.checkpoint import open_checkpoint
from edgespec.export.checkpoint.gguf_file import read_gguf
from tests.export.test_gguf import write_gguf

FUZZ = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
HEADER = 600  # damage to the header finds more than damage to weights
Damage = list[tuple[int, bytes]]
DAMAGE = st.lists(st.tuples(st.integers(0, HEADER), st.binary(min_size=1, max_size=8)), min_size=1, max_size=4)
LIMIT = 400 * 2**20


def damaged(whole: bytes, damage: Damage, cut: int) -> bytes:
    data = bytearray(whole)
    for position, content in damage:
        data[position : position + len(content)] = content
    return bytes(data[: len(data) - cut])


@contextlib.contextmanager
def only_our_errors() -> Iterator[None]:
    """Success, or an error of ours in one line."""
    message = ""
    try:
        yield
    except EdgespecError as error:
        message = str(error)
    assert "\n" not in message


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.fixture(scope="module")
def whole_gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "model.gguf", gguf.GGMLQuantizationType.Q8_0).read_bytes()


@FUZZ
@given(damage=DAMAGE, cut=st.sampled_from([0, 0, 1, 100, 5000]))
def test_gguf(whole_gguf: bytes, tmp_path: Path, damage: Damage, cut: int) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(damaged(whole_gguf, damage, cut))
    before = peak()
    read_gguf.cache_clear()
    with only_our_errors():
        reader = read_gguf(path)
        assert all(tensor.data.nbytes == tensor.n_bytes for tensor in reader.tensors)
    assert peak() - before < LIMIT


@FUZZ
@given(damage=DAMAGE, cut=st.sampled_from([0, 0, 1, 100, 5000]))
def test_safetensors(llama: Path, tmp_path: Path, damage: Damage, cut: int) -> None:
    folder = tmp_path / "checkpoint"
    if not folder.exists():
        shutil.copytree(llama, folder)
    (folder / "model.safetensors").write_bytes(damaged((llama / "model.safetensors").read_bytes(), damage, cut))
    before = peak()
    with only_our_errors():
        checkpoint = open_checkpoint(str(folder))
        for name in checkpoint:
            checkpoint.read_float(name)
    assert peak() - before < LIMIT


@given(index=st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
@FUZZ
def test_an_index_of_shards(llama: Path, tmp_path: Path, index: object) -> None:
    """Whatever JSON stands there."""
    folder = tmp_path / "checkpoint"
    if not folder.exists():
        shutil.copytree(llama, folder)
    for content in (index, {"weight_map": index}):
        (folder / "model.safetensors.index.json").write_text(json.dumps(content))
        with only_our_errors():
            open_checkpoint(str(folder))


def test_a_header_that_promises_terabytes(llama: Path, tmp_path: Path, whole_gguf: bytes) -> None:
    """Counts and lengths far beyond the file: refused at once."""
    path = tmp_path / "model.gguf"
    for position in (8, 16):  # counts of tensors and of fields
        data = bytearray(whole_gguf)
        data[position : position + 8] = struct.pack("<Q", 2**50)
        path.write_bytes(data)
        read_gguf.cache_clear()
        with pytest.raises(EdgespecError):
            read_gguf(path)
    folder = Path(shutil.copytree(llama, tmp_path / "checkpoint"))
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2**50) + b"{}")
    with pytest.raises(EdgespecError):
        open_checkpoint(str(folder))
