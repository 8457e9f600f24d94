"""The service for the app's Java shell, which calls these functions through Chaquopy and gets events as JSON.

Everything that Java hands over is duck-typed: ``shell.onEvent(json)`` takes events, ``picked.names()`` and ``picked.open(name)`` (a file
descriptor that becomes ours) are a picked folder. So it is tested on a desktop with plain Python objects.
"""

from __future__ import annotations

import functools
import json
import logging
import os
from pathlib import Path
from typing import Any, BinaryIO

from edgespec.demo.protocol import Event
from edgespec.demo.service import Service
from edgespec.runtime.ort import LIBRARY_VARIABLE

LIBRARY = "libonnxruntime.so"  # the one that the Android archive brings, found by the app's own loader
log = logging.getLogger(__name__)


def start(files: str, external: str, cache: str, shell: Any) -> Service:
    """The service, with the bundle of the last time on its way.

    Args:
        files: the app's private folder, for settings and conversation.
        external: the app's folder that ``adb push`` reaches; bundles are in its ``bundles``.
        cache: the app's cache folder.
        shell: takes events.
    """
    os.environ.setdefault(LIBRARY_VARIABLE, LIBRARY)
    os.environ.setdefault("EDGESPEC_CACHE", cache)
    logging.basicConfig(level=logging.INFO)

    def emit(event: Event) -> None:
        try:
            shell.onEvent(json.dumps(event))
        except Exception:  # the page is being rebuilt; it asks for the state when it is there
            log.debug("an event was lost", exc_info=True)

    service = Service(Path(files) / "demo", Path(external) / "bundles", emit, abilities=("import",))
    service.open_last()
    return service


def import_picked(service: Service, picked: Any, name: str) -> None:
    """Copy the folder that the system's picker gave."""

    def opener(file: str) -> BinaryIO:
        return os.fdopen(picked.open(file), "rb")

    sources = {str(file): functools.partial(opener, str(file)) for file in picked.names()}
    with service._reporting():
        service.import_from(sources, name)
