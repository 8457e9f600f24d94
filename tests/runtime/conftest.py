"""Bundles for the runtime's tests, a cache folder of their own, and with which packages they run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgespec.runtime import Engine, control_groups, load
from edgespec.runtime.ort import LIBRARY_VARIABLE
from tests.helpers.bundles import make_attention_bundle
from tests.helpers.onnxruntime import wheel_library

BOTH_WAYS = ("test_cache", "test_chat", "test_engine", "test_kv", "test_model", "test_stream", "test_text")
"""Test files that the default run goes through with and without the packages."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``--packages`` says whether every test runs with the packages onnxruntime and tokenizers, without them, or both."""
    chosen = metafunc.config.getoption("--packages")
    if "packages" in metafunc.fixturenames:
        both = chosen == "both" or (chosen == "default" and metafunc.module.__name__.rpartition(".")[2] in BOTH_WAYS)
        ways = ("with", "without") if both else ("with" if chosen == "default" else chosen,)
        ids = [f"{way} packages" for way in ways] if both else [pytest.HIDDEN_PARAM]
        metafunc.parametrize("packages", ways, indirect=True, scope="module", ids=ids)


@pytest.fixture(autouse=True, scope="module")
def packages(request: pytest.FixtureRequest) -> Iterator[str]:
    """Whether the runtime finds the packages onnxruntime and tokenizers in the tests of this module."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "without":
            patch.setenv(LIBRARY_VARIABLE, str(wheel_library()))
            patch.setitem(sys.modules, "tokenizers", None)
        else:
            patch.delenv(LIBRARY_VARIABLE, raising=False)
        yield request.param


@pytest.fixture(autouse=True)
def own_cache(cache: Path) -> Path:
    return cache


@pytest.fixture(scope="module")
def attention_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random decoder and a draft that often agrees with it."""
    return make_attention_bundle(tmp_path_factory.mktemp("bundles") / "attention", draft_noise=0.1, chat=True)


@pytest.fixture
def attention(attention_bundle: Path) -> Iterator[Engine]:
    with load(attention_bundle, threads=1) as engine:
        yield engine


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for files of control groups, as the kernel shows them, that this process seems to be in."""
    monkeypatch.setattr(control_groups, "MOUNT", tmp_path)
    monkeypatch.setattr(control_groups, "MEMBERSHIP", tmp_path / "membership")
    return tmp_path
