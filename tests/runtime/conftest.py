"""Bundles for the runtime's tests, and a cache folder of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edgespec.runtime import Engine, load
from tests.helpers.bundles import make_attention_bundle


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("EDGESPEC_CACHE", str(folder))
    return folder


@pytest.fixture(scope="module")
def attention_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random decoder and a draft that often agrees with it."""
    return make_attention_bundle(tmp_path_factory.mktemp("bundles") / "attention", draft_noise=0.1, chat=True)


@pytest.fixture
def attention(attention_bundle: Path) -> Iterator[Engine]:
    with load(attention_bundle, threads=1) as engine:
        yield engine
