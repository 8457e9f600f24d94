"""The models of an engine: loaded when they are first needed, with what the memory plan leaves each of them."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from edgespec.errors import NO_MEMORY, BundleError, CapacityError, OutOfMemory, RuntimeFailure
from edgespec.manifest import Manifest
from edgespec.runtime.memory.pack_cache import forget_packs, zeroed_blocks
from edgespec.runtime.memory.plan import Settings, rows_of
from edgespec.runtime.models.fused import FirstSteps, FusedModel, head_inside, target_graph
from edgespec.runtime.models.model import Model
from edgespec.runtime.models.row_heads import RowHeads
from edgespec.runtime.providers.placement import Placements
from edgespec.runtime.providers.profiles import open_model

log = logging.getLogger(__name__)

HEAD_START_S = 0.06  # of a model that is loaded beside something else: it reads its graph, and needs Python's lock once more to go on


class Models:
    """The target, and draft models and heads as long as there is memory for them.

    Args:
        dropped: draft models that are not used, and why.
        packs: graphs with saved packs, used in place of the bundle's.
        own_blocks: once one of these is loaded, memory blocks from this size on are mapped on their own.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        settings: Settings,
        placements: Placements,
        *,
        dropped: Mapping[str, str],
        packs: Mapping[str, Path],
        own_blocks: int,
    ) -> None:
        self.loaded: dict[str, Model] = {}
        self.heads: dict[str, RowHeads] = {}
        """Those that keep no cache."""
        self.dropped = dict(dropped)
        self._path = path
        self._manifest = manifest
        self._settings = settings
        self.placements = placements
        self._packs = dict(packs)
        self._own_blocks = own_blocks

    def get(self, name: str) -> Model:
        """The model of that name in the manifest.

        Raises:
            OutOfMemory: there is none for it; or it is a draft model that was dropped before.
        """
        self._check_kept(name)
        if name not in self.loaded:
            self.loaded[name] = self._load(name)
        return self.loaded[name]

    @contextlib.contextmanager
    def loading(self, name: str) -> Iterator[None]:
        """Load a model while the body of the ``with`` statement does something else: most of the time goes into packing weights, for
        which ONNX Runtime does not hold Python's lock. Errors are those of :meth:`get`, after the body."""
        failed: list[BaseException] = []

        def load() -> None:
            try:
                self.get(name)
            except BaseException as error:  # raised again below
                failed.append(error)

        thread = threading.Thread(target=load, name="edgespec-loading")
        try:
            thread.start()
        except RuntimeError:  # the system has no thread for us
            load()
        else:
            thread.join(HEAD_START_S)
        try:
            yield
        finally:
            if thread.ident is not None:
                thread.join()
        if failed:
            raise failed[0]

    def _load(self, name: str) -> Model:
        packed = self._packs.get(name)
        if packed is not None:
            try:
                with zeroed_blocks(self._own_blocks):
                    return self._open(name, packed)
            except (RuntimeFailure, BundleError) as error:
                if isinstance(error, OutOfMemory):
                    raise
                log.warning("%s cannot be used and is made again the next time: %s", packed, error)
                forget_packs(packed)
                self._packs.clear()
        graph = target_graph(self._manifest) if name == "target" else self._manifest.models[name].graph
        return self._open(name, self._path / graph)

    def _open(self, name: str, graph: Path) -> Model:
        spec = self._manifest.models[name]
        inside = head_inside(self._manifest) if name == "target" else None
        return open_model(
            graph.parent,
            dataclasses.replace(spec, graph=graph.name, max_width=min(spec.max_width, self._settings.width)),
            self.placements.of_model(name),
            capacity=rows_of(name, self._manifest, self._settings),
            alone=not self._manifest.models.keys() - {"target"} - self.dropped.keys(),
            chunk=self._settings.chunk,
            inside=self._manifest.models[inside] if inside else None,
        )

    def get_heads(self, name: str) -> RowHeads:
        """Heads that keep no cache; errors are those of :meth:`get`."""
        self._check_kept(name)
        if name not in self.heads:
            spec, place = self._manifest.models[name], self.placements.of_model(name)
            self.heads[name] = RowHeads(
                self._path / spec.graph, spec, threads=place.threads, providers=place.providers, strict=place.strict
            )
        return self.heads[name]

    def load(self, name: str) -> None:
        """Whatever it is."""
        if self._manifest.models[name].layers:
            self.get(name)
        else:
            self.get_heads(name)

    def _check_kept(self, name: str) -> None:
        if name in self.dropped:
            raise OutOfMemory(f"{name}: {self.dropped[name]}")

    def why_dropped(self, names: Sequence[str]) -> str | None:
        """Why one of these models is not used, if so."""
        return next((self.dropped[name] for name in names if name in self.dropped), None)

    def try_load(self, names: Sequence[str]) -> bool:
        """Load draft models; if there is no memory for one, do without them all from now on."""
        try:
            for name in names:
                self.load(name)
        except (*NO_MEMORY, CapacityError) as error:
            self.drop(names, f"there is no memory for it ({error or type(error).__name__})")
        return self.why_dropped(names) is None

    def unload(self) -> None:
        """Free them all."""
        self.heads.clear()
        self.loaded.clear()

    def unload_drafts(self) -> None:
        """Free the draft models and heads; they are loaded again when they are needed."""
        self.heads.clear()
        for name in [name for name in self.loaded if name != "target"]:
            del self.loaded[name]
        self._let_go()

    def first_steps(self, name: str) -> FirstSteps | None:
        """Let the target's passes make the first step of this head from now on; None if its graph does not have it."""
        target = self.get("target")
        if name != head_inside(self._manifest) or not isinstance(target, FusedModel):
            return None
        return target.attach(self.get(name))

    def leave_heads_out(self) -> None:
        """The target's passes are the target's alone until :meth:`first_steps` is asked for."""
        target = self.loaded.get("target")
        if isinstance(target, FusedModel):
            target.leave_out()

    def _let_go(self) -> None:
        """Let the target hold no head that is to be freed."""
        target = self.loaded.get("target")
        if isinstance(target, FusedModel):
            target.detach()

    def drop(self, names: Sequence[str], reason: str) -> None:
        """Do without draft models from now on."""
        for name in names:
            self.loaded.pop(name, None)
            self.heads.pop(name, None)
            if name == head_inside(self._manifest):
                self._let_go()
            if name not in self.dropped:
                self.dropped[name] = reason
                log.warning("going on without %s: %s", name, reason)
