"""Conversation and settings on disk, so that they are there again after the process was killed."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

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
        temporary = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=self.folder, prefix=f".{name}.")
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(data, file, ensure_ascii=False)
            os.replace(temporary, self.folder / f"{name}.json")
        except OSError as error:
            log.warning("%s: cannot be saved: %s", name, error)
            if temporary:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
