"""From what the user typed to an open checkpoint: a Hub id, a local folder or a ``.gguf`` file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from edgespec.errors import CheckpointError, UnsupportedModelError, UsageError
from edgespec.export.checkpoint.base import Checkpoint, Origin
from edgespec.hub import download, is_hub_id

HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt", "README.md"]


def open_checkpoint(source: str, *, revision: str | None = None, trust_remote_code: bool = False) -> Checkpoint:
    """Open a checkpoint without reading its weights.

    Raises:
        CheckpointError: nothing there, the Hub cannot be reached, not readable, or not a decoder.
        UsageError: a revision of something that is on this disk.
    """
    path = Path(source).expanduser()
    if revision is not None and path.exists():
        raise UsageError(f"{source}: is on this disk, where there are no revisions; leave {revision!r} away")
    if path.suffix == ".gguf":
        if not path.is_file():
            raise CheckpointError(f"{path}: no such file")
        return _open_gguf(path.absolute())
    if path.is_dir():
        return _open_folder(Origin(name=str(path), folder=path.absolute(), licence=licence_of(path)), trust_remote_code)
    if path.is_file():
        raise CheckpointError(f"{path}: is a file; give a checkpoint folder, a .gguf file or a Hub id")
    if path.is_absolute() or source.startswith((".", "~")) or not is_hub_id(source):
        raise CheckpointError(f"{source}: no such folder or file")
    return _open_folder(_download(source, revision, trust_remote_code), trust_remote_code)


def _open_folder(origin: Origin, trust_remote_code: bool) -> Checkpoint:
    from edgespec.export.checkpoint.safetensors_folder import SafetensorsCheckpoint

    if not (origin.folder / "config.json").is_file():
        raise CheckpointError(f"{origin.folder}: has no config.json, so it is not a checkpoint folder")
    config = _config(origin, trust_remote_code=trust_remote_code)
    return SafetensorsCheckpoint(origin, config)


def _open_gguf(path: Path) -> Checkpoint:
    from edgespec.export.checkpoint.gguf_file import GgufCheckpoint, gguf_text, read_gguf, scaled_rope

    licence = gguf_text(read_gguf(path), "general.license")
    origin = Origin(name=path.name, folder=path.parent, licence=licence, gguf_file=path.name)
    config = _config(origin, trust_remote_code=False)
    rope = scaled_rope(read_gguf(path), config, path)
    if rope is not None:
        config.rope_parameters = rope
    return GgufCheckpoint(origin, config)


def _config(origin: Origin, *, trust_remote_code: bool) -> Any:
    try:
        config = origin.load(AutoConfig.from_pretrained, trust_remote_code=trust_remote_code)
    except Exception as error:  # transformers raises many kinds here, all of them about this one file
        reason = str(error).strip().split("\n")[0]
        if "trust_remote_code" in str(error):
            reason = "needs custom code from the checkpoint; pass --trust-remote-code if you trust its author"
        raise UnsupportedModelError(f"{origin.name}: its configuration cannot be used: {reason}") from error
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(f"{origin.name}: {config.model_type} has an encoder; only decoders can be exported")
    return config


def licence_of(folder: Path) -> str | None:
    """``license:`` of the model card's header, where there is one."""
    card = folder / "README.md"
    if not card.is_file():
        return None
    found = re.search(r"^license:\s*['\"]?([\w.+-]+)", card.read_text(encoding="utf-8", errors="replace")[:20_000], re.MULTILINE)
    return found.group(1) if found else None


def _download(source: str, revision: str | None, trust_remote_code: bool) -> Origin:
    patterns = [*HUB_FILES, *(["*.py"] if trust_remote_code else [])]
    folder = download(source, patterns, instead="a checkpoint folder or a .gguf file", revision=revision)
    return Origin(name=source, folder=folder, revision=folder.name, licence=licence_of(folder))
