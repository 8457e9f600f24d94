"""Opening a bundle: files that are missing, cut, edited, or not what they seem."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from edgespec.bundle import bundle_key, check_hashes, describe_file, hash_file, open_bundle
from edgespec.errors import BundleError
from edgespec.manifest import MANIFEST_NAME, Manifest
from tests.test_manifest import EXAMPLE, FILES


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A folder with a valid manifest; its files hold a few bytes instead of models."""
    folder = tmp_path / "bundle"
    folder.mkdir()
    for name in FILES:
        (folder / name).write_bytes(name.encode() * 50)
    write(folder, dataclasses.replace(EXAMPLE, files=tuple(describe_file(folder / name) for name in FILES)))
    return folder


def write(bundle: Path, manifest: Manifest) -> None:
    (bundle / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")


def test_a_good_bundle_opens_and_its_hashes_are_right(bundle: Path) -> None:
    manifest = open_bundle(bundle)
    chunks: list[int] = []
    check_hashes(bundle, manifest, chunks.append)
    assert sum(chunks) == sum(file.size for file in manifest.files)


def test_a_missing_file_is_named(bundle: Path) -> None:
    (bundle / "model.bin").unlink()
    with pytest.raises(BundleError, match=r"model\.bin: missing from the bundle"):
        open_bundle(bundle)


def test_a_truncated_file_is_named_with_both_sizes(bundle: Path) -> None:
    data = (bundle / "model.bin").read_bytes()
    (bundle / "model.bin").write_bytes(data[:-1])
    with pytest.raises(BundleError, match=rf"model\.bin: has {len(data) - 1} bytes where the manifest says {len(data)}"):
        open_bundle(bundle)


@pytest.mark.parametrize("offset", [0, 137, -1])
def test_one_edited_byte_is_found(bundle: Path, offset: int) -> None:
    data = bytearray((bundle / "model.bin").read_bytes())
    data[offset] ^= 1
    (bundle / "model.bin").write_bytes(data)
    manifest = open_bundle(bundle)
    with pytest.raises(BundleError, match=r"model\.bin: its sha256 is"):
        check_hashes(bundle, manifest)


def test_a_link_is_refused_even_to_equal_bytes(bundle: Path, tmp_path: Path) -> None:
    (bundle / "model.bin").rename(tmp_path / "elsewhere")
    (bundle / "model.bin").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BundleError, match=r"model\.bin: is a link"):
        open_bundle(bundle)


def test_a_dangling_link_is_refused(bundle: Path) -> None:
    (bundle / "model.bin").unlink()
    (bundle / "model.bin").symlink_to("nowhere")
    with pytest.raises(BundleError, match=r"model\.bin: is a link"):
        open_bundle(bundle)


def test_a_folder_in_place_of_a_file_is_refused(bundle: Path) -> None:
    (bundle / "model.bin").unlink()
    (bundle / "model.bin").mkdir()
    with pytest.raises(BundleError, match=r"model\.bin: is a link or a folder"):
        open_bundle(bundle)


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "sub/file", "..", "."])
def test_a_path_out_of_the_bundle_is_refused(bundle: Path, name: str) -> None:
    """Even though the file exists, with the right size and hash."""
    (bundle.parent / "secret").write_bytes(b"x")
    (bundle / "sub").mkdir()
    (bundle / "sub" / "file").write_bytes(b"x")
    manifest = open_bundle(bundle)
    entry = dataclasses.replace(manifest.files[0], name=name, size=1, sha256=hash_file(bundle.parent / "secret"))
    write(bundle, dataclasses.replace(manifest, files=(*manifest.files, entry)))
    with pytest.raises(BundleError, match="is not a plain file name inside the bundle"):
        open_bundle(bundle)


def test_a_newer_format_asks_for_an_upgrade(bundle: Path) -> None:
    write(bundle, dataclasses.replace(open_bundle(bundle), format_version=99))
    with pytest.raises(BundleError, match="99 is newer than 1, the newest this edgespec reads; upgrade edgespec"):
        open_bundle(bundle)


def test_the_key_follows_the_content(bundle: Path) -> None:
    before = bundle_key(bundle)
    (bundle / "model.bin").write_bytes(b"other weights")
    manifest = dataclasses.replace(EXAMPLE, files=tuple(describe_file(bundle / name) for name in FILES))
    write(bundle, manifest)
    assert bundle_key(bundle) != before
    assert open_bundle(bundle) == manifest
