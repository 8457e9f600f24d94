"""The models of an engine: loaded when they are first needed, with what the memory plan leaves each of them."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from edgespec.errors import NO_MEMORY, CapacityError, OutOfMemory
from edgespec.manifest import Manifest
from edgespec.runtime.memory.plan import Settings, rows_of
from edgespec.runtime.model import Model
from edgespec.runtime.placement import Placements
from edgespec.runtime.profiles import open_model

log = logging.getLogger(__name__)


class Models:
    """The target, and draft models as long as there is memory for them. ``dropped`` are those that are not used, and why."""

    def __init__(self, path: Path, manifest: Manifest, settings: Settings, placements: Placements, dropped: Mapping[str, str]) -> None:
        self.loaded: dict[str, Model] = {}
        self.dropped = dict(dropped)
        self._path = path
        self._manifest = manifest
        self._settings = settings
        self._placements = placements

    def get(self, name: str) -> Model:
        """The model of that name in the manifest.

        Raises:
            OutOfMemory: there is none for it; or it is a draft model that was dropped before.
        """
        if name in self.dropped:
            raise OutOfMemory(f"{name}: {self.dropped[name]}")
        if name not in self.loaded:
            spec = self._manifest.models[name]
            self.loaded[name] = open_model(
                self._path,
                dataclasses.replace(spec, max_width=min(spec.max_width, self._settings.width)),
                self._placements.of_model(name),
                capacity=rows_of(name, self._manifest, self._settings),
                alone=not self._manifest.models.keys() - {"target"} - self.dropped.keys(),
                chunk=self._settings.chunk,
            )
        return self.loaded[name]

    def why_dropped(self, names: Sequence[str]) -> str | None:
        """Why one of these models is not used, if so."""
        return next((self.dropped[name] for name in names if name in self.dropped), None)

    def try_load(self, names: Sequence[str]) -> bool:
        """Load draft models; if there is no memory for one, do without them all from now on."""
        try:
            for name in names:
                self.get(name)
        except (*NO_MEMORY, CapacityError) as error:
            self.drop(names, f"there is no memory for it ({error or type(error).__name__})")
        return self.why_dropped(names) is None

    def unload_drafts(self) -> None:
        """Free the draft models; they are loaded again when they are needed."""
        for name in [name for name in self.loaded if name != "target"]:
            del self.loaded[name]

    def drop(self, names: Sequence[str], reason: str) -> None:
        """Do without draft models from now on."""
        for name in names:
            self.loaded.pop(name, None)
            if name not in self.dropped:
                self.dropped[name] = reason
                log.warning("going on without %s: %s", name, reason)
