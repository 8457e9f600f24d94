"""Whose rows are in the caches, and the rows of conversations that wait."""

from __future__ import annotations

import weakref
from collections.abc import Mapping

from edgespec.runtime.conversations.prefix import Prefix
from edgespec.runtime.models.model import Model
from edgespec.runtime.models.rows import cache_bytes


class Swap:
    """Rows of conversations, in the caches of ``models`` and set aside within ``room`` bytes.

    The one that was used longest ago goes first when there is no room; it then computes its prompt again. A conversation that
    nobody holds any more is forgotten with its rows.
    """

    def __init__(self, models: Mapping[str, Model], room: int) -> None:
        self.made = "fast"
        """Exactness of the generation that filled the target's cache."""
        self._models = models
        self._room = room
        self._owner: weakref.ref[object] | None = None
        self._waiting: dict[int, tuple[weakref.ref[object], Prefix]] = {}
        """By the identity of the conversation, the longest waiting first."""

    def enter(self, owner: object) -> bool:
        """Make the caches those of ``owner``, None for a generation of its own, as far as there are rows of it. Whether they
        are its rows."""
        current = self._owner() if self._owner is not None else None
        if owner is not None and current is owner:
            return True
        if current is not None and self._make_room(self._size()):
            self.put(current, self._take())
        self._owner = None if owner is None else weakref.ref(owner)
        own = self._waiting.pop(id(owner), None) if owner is not None else None
        return own is not None and own[0]() is owner and self._bring_back(own[1])

    def put(self, owner: object, prefix: Prefix) -> None:
        """Set rows aside for ``owner``."""
        self._waiting.pop(id(owner), None)
        if self._make_room(prefix.size):
            self._waiting[id(owner)] = weakref.ref(owner), prefix

    def get(self, owner: object) -> Prefix | None:
        """The rows of ``owner``, wherever they are; None also if there is no room for a copy of them."""
        if self._owner is not None and self._owner() is owner:
            return self._take() if self._make_room(self._size()) else None
        found = self._waiting.get(id(owner))
        return found[1] if found and found[0]() is owner else None

    def forget(self) -> None:
        """Free the rows of all that wait; they compute their prompts again."""
        self._waiting.clear()

    def _make_room(self, size: int) -> bool:
        """Free what nobody holds any more, and as many others as it takes. False if ``size`` is too much in any case."""
        for key, (reference, _) in list(self._waiting.items()):
            if reference() is None:
                del self._waiting[key]
        if size > self._room:
            return False
        while self._waiting and size + sum(kept.size for _, kept in self._waiting.values()) > self._room:
            del self._waiting[next(iter(self._waiting))]
        return True

    def _size(self) -> int:
        """Bytes of the rows that are in the caches."""
        return sum(cache_bytes(model.spec, model.length, model.hold) for model in self._models.values())

    def _take(self) -> Prefix:
        models = self._models.items()
        tokens = {name: list(model.tokens) for name, model in models}
        return Prefix(tokens, {name: model.cache_rows(0, model.length) for name, model in models}, self.made)

    def _bring_back(self, prefix: Prefix) -> bool:
        """Rows of a model that is not loaded yet are left; it then computes them again."""
        for name, model in self._models.items():
            if name not in prefix.tokens or not model.restore_rows(prefix.tokens[name], prefix.rows[name]):
                model.keep(0)
        self.made = prefix.made
        return self._models["target"].length == len(prefix.tokens["target"])
