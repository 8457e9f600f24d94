"""A service on a tiny bundle, whose events are collected."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgespec.demo.protocol import Settings
from edgespec.demo.service import Service
from tests.helpers.bundles import alphabet_table, make_attention_bundle, make_lookup_bundle

WAIT_S = 60.0
SETTINGS = Settings(threads=1, max_new_tokens=40, drafter="draft", draft_length=3)
"""The draft of the tiny bundle costs as much as the target, so it would be off by itself."""


@pytest.fixture(autouse=True)
def own_cache(cache: Path) -> Path:
    return cache


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two bundles, and one that is none."""
    folder = tmp_path_factory.mktemp("bundles")
    table = alphabet_table()
    sometimes_wrong = [ord("z") if token % 5 == 0 else following for token, following in enumerate(table)]
    make_lookup_bundle(folder / "first", table, sometimes_wrong, chat=True, capacity=512)
    make_attention_bundle(folder / "mute", seed=1)
    (folder / "other").mkdir()
    return folder


class Recorded:
    """Events of a service, in order."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._changed = threading.Condition()

    def __call__(self, event: dict[str, Any]) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in list(self.events) if event["type"] == kind]

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first event that is ``wanted``, once it is there."""
        with self._changed:
            assert self._changed.wait_for(lambda: any(map(wanted, self.events)), WAIT_S), self.events[-5:]
            return next(event for event in self.events if wanted(event))

    def clear(self) -> None:
        self.events.clear()


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


@pytest.fixture
def service(tmp_path: Path, bundles: Path, recorded: Recorded) -> Iterator[Service]:
    made = Service(tmp_path / "state", bundles, recorded, abilities=("import",), settings=SETTINGS)
    made.handle({"type": "open", "name": "first"})
    assert made.wait(WAIT_S)
    assert recorded.of("error") == []
    yield made
    made.close()
