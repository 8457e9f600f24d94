"""Conversation and settings on disk, so that they are there again after the process was killed."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from edgespec.files import whole

log = logging.getLogger(__name__)


class Storage:
    """Small JSON files in a folder. What cannot be read counts as not there; what cannot be written is logged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, name: str) -> Any:
        """What was stored as ``name``, None if nothing was."""
        try:
            return json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None

    def write(self, name: str, data: Any) -> None:
        """Store ``data``, whole or not at all."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with whole(self.folder / f"{name}.json", private=True) as file:
                file.write(json.dumps(data, ensure_ascii=False).encode())
        except OSError as error:
            log.warning("%s: cannot be saved: %s", name, error)
