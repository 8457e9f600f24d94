"""Bundles for the runtime's tests, a cache folder of their own, and the backend of ONNX Runtime that they run on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edgespec.runtime import Engine, load
from edgespec.runtime.ort import LIBRARY_VARIABLE
from tests.helpers.bundles import make_attention_bundle
from tests.helpers.onnxruntime import wheel_library

ON_BOTH = ("test_cache", "test_chat", "test_engine", "test_model", "test_stream")
"""Test files that the default run goes through on both backends."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``--ort-backend`` says on which backends every test runs."""
    chosen = metafunc.config.getoption("--ort-backend")
    if "ort_backend" in metafunc.fixturenames:
        both = chosen == "both" or (chosen == "default" and metafunc.module.__name__.rpartition(".")[2] in ON_BOTH)
        backends = ("python", "capi") if both else ("python" if chosen == "default" else chosen,)
        metafunc.parametrize("ort_backend", backends, indirect=True, scope="module", ids=backends if both else [pytest.HIDDEN_PARAM])


@pytest.fixture(autouse=True, scope="module")
def ort_backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Which backend the tests of this module run on, also in processes that they start."""
    backend = request.param
    with pytest.MonkeyPatch.context() as patch:
        if backend == "capi":
            patch.setenv(LIBRARY_VARIABLE, str(wheel_library()))
        else:
            patch.delenv(LIBRARY_VARIABLE, raising=False)
        yield backend


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
