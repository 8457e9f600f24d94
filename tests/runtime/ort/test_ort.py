"""The two backends of ONNX Runtime: equal bits, equal descriptions, equal errors; and how one is chosen."""

from __future__ import annotations

import _ctypes
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgespec.bundle import open_bundle
from edgespec.errors import RuntimeFailure
from edgespec.runtime import load
from edgespec.runtime.models.model import Model
from edgespec.runtime.ort import LIBRARY_VARIABLE, import_onnxruntime
from edgespec.runtime.ort.library import open_library
from edgespec.runtime.ort.table import RELEASE_FUNCTIONS, STATUS_FUNCTIONS
from tests.helpers.bundles import make_attention_bundle
from tests.helpers.onnxruntime import wheel_library

TOKENS = list(np.random.default_rng(5).integers(0, 255, 64))


@pytest.fixture
def library() -> Any:
    return open_library(str(wheel_library()))


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Calls a function on the package and on the library, and returns both results."""

    def run(function: Any) -> tuple[Any, Any]:
        monkeypatch.delenv(LIBRARY_VARIABLE, raising=False)
        package = function()
        monkeypatch.setenv(LIBRARY_VARIABLE, str(wheel_library()))
        return package, function()

    return run


def session(ort: Any, graph: Path, **settings: Any) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    for name, value in settings.items():
        setattr(options, name, value)
    return ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])


def passes(bundle: Path) -> list[np.ndarray]:
    """Logits and cache rows of a prefill, a tree, a rollback, a wide and a padded pass."""
    spec = open_bundle(bundle).target
    model = Model(bundle / spec.graph, spec, capacity=64, threads=1, providers=["CPUExecutionProvider"])
    out = [model.run(TOKENS[:20], range(20)).copy(), model.run(TOKENS[20:24], range(4), (-1, 0, 0, 1)).copy()]
    model.keep_path(20, (0, 2))
    out += [model.run(TOKENS[30:31], [0]).copy(), model.run(TOKENS[31:34], [0, 2], width=6).copy()]
    return [*out, *model.cache_rows(0, model.length)]


@pytest.mark.parametrize("window", [None, 8])
def test_logits_and_caches_are_equal_bit_for_bit(tmp_path: Path, both: Any, window: int | None) -> None:
    bundle = make_attention_bundle(tmp_path / "b", window=window)
    package, library = both(lambda: passes(bundle))
    for one, other in zip(package, library, strict=True):
        np.testing.assert_array_equal(one, other)


def test_texts_are_equal(attention_bundle: Path, both: Any) -> None:
    def texts() -> list[tuple[int, ...]]:
        with load(attention_bundle, threads=1) as engine:
            options = ({}, {"drafter": "none"}, {"do_sample": True, "seed": 3}, {"drafter": "draft", "draft_length": 3})
            return [engine.generate("hello", max_new_tokens=40, **option).token_ids for option in options]

    package, library = both(texts)
    assert package == library


def test_graphs_are_described_alike(attention_bundle: Path, both: Any) -> None:
    def described() -> list[tuple[str, str, list[Any]]]:
        made = session(import_onnxruntime(), attention_bundle / "target.onnx")
        return [(item.name, item.type, item.shape) for item in [*made.get_inputs(), *made.get_outputs()]]

    package, library = both(described)
    assert package == library
    assert ("total_sequence_length", "tensor(int32)", []) in library
    assert any("S" in shape for _, _, shape in library)


def test_version_and_providers_are_the_packages(library: Any) -> None:
    import onnxruntime

    assert library.__version__ == onnxruntime.__version__
    assert library.get_available_providers() == onnxruntime.get_available_providers()


def test_a_type_without_a_name_for_its_dimension(tmp_path: Path, both: Any) -> None:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [value("x", TensorProto.FLOAT16, [None, 3])],
        [value("y", TensorProto.FLOAT16, [None, 3])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), str(tmp_path / "g.onnx"))

    def described() -> tuple[str, list[Any]]:
        item = session(import_onnxruntime(), tmp_path / "g.onnx").get_inputs()[0]
        return item.type, item.shape

    package, library = both(described)
    assert package == library == ("tensor(float16)", [None, 3])


def test_errors_are_worded_alike(tmp_path: Path, attention_bundle: Path, both: Any) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes((attention_bundle / "target.onnx").read_bytes()[:1000])

    def messages() -> list[str]:
        ort, found = import_onnxruntime(), []
        for graph in (broken, tmp_path / "none.onnx"):
            with pytest.raises(Exception) as caught:  # noqa: PT011
                session(ort, graph)
            found.append(str(caught.value))
        loaded = session(ort, attention_bundle / "target.onnx")
        binding = loaded.io_binding()
        tokens = np.zeros(4, np.int64)
        binding.bind_input("input_ids", "cpu", 0, np.int64, [1, 4], tokens.ctypes.data)
        with pytest.raises(Exception) as caught:  # noqa: PT011
            loaded.run_with_iobinding(binding)
        return [*found, str(caught.value)]

    package, library = both(messages)
    assert package[:2] == library[:2]
    assert all(message.startswith("[ONNXRuntimeError]") for message in library)
    # Of a run the package says no code.
    assert library[2].endswith(package[2].removeprefix("Error in execution"))


def endless_graph(path: Path) -> Path:
    """y = x plus one, 2**40 times."""
    value, node = helper.make_tensor_value_info, helper.make_node
    body = helper.make_graph(
        [node("Add", ["v", "one"], ["w"]), node("Identity", ["c"], ["d"])],
        "body",
        [value("i", TensorProto.INT64, []), value("c", TensorProto.BOOL, []), value("v", TensorProto.FLOAT, [1])],
        [value("d", TensorProto.BOOL, []), value("w", TensorProto.FLOAT, [1])],
    )
    constants = [helper.make_tensor("count", TensorProto.INT64, [], [2**40]), helper.make_tensor("true", TensorProto.BOOL, [], [True])]
    constants.append(helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0]))
    graph = helper.make_graph(
        [node("Loop", ["count", "true", "x"], ["y"], body=body)],
        "endless",
        [value("x", TensorProto.FLOAT, [1])],
        [value("y", TensorProto.FLOAT, [1])],
        constants,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), str(path))
    return path


def test_a_run_can_be_ended_from_another_thread(tmp_path: Path, both: Any) -> None:
    """Which also shows that the interpreter is free during a run: the timer could not fire otherwise."""
    graph = endless_graph(tmp_path / "endless.onnx")

    def ended() -> bool:
        ort = import_onnxruntime()
        loaded, options = session(ort, graph), ort.RunOptions()
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        x, y = np.zeros(1, np.float32), np.zeros(1, np.float32)
        binding = loaded.io_binding()
        binding.bind_input("x", "cpu", 0, np.float32, [1], x.ctypes.data)
        binding.bind_output("y", "cpu", 0, np.float32, [1], y.ctypes.data)
        timer = threading.Timer(0.1, lambda: setattr(options, "terminate", True))
        started = time.perf_counter()
        timer.start()
        with pytest.raises(Exception, match="terminate") as caught:
            loaded.run_with_iobinding(binding, options)
        assert time.perf_counter() - started < 20
        assert options.terminate
        options.terminate = False
        return "Exiting due to terminate flag" in str(caught.value)

    assert both(ended) == (True, True)


def test_settings_reach_the_session(tmp_path: Path, attention_bundle: Path, library: Any) -> None:
    copy = tmp_path / "optimised é.onnx"
    loaded = session(library, attention_bundle / "target.onnx", optimized_model_filepath=str(copy), enable_mem_pattern=False)
    assert loaded.get_providers() == ["CPUExecutionProvider"]
    assert onnx.load(str(copy)).graph.node
    options = library.SessionOptions()
    options.intra_op_num_threads = 2
    options.add_session_config_entry("session.intra_op_thread_affinities", "neither")
    with pytest.raises(Exception, match="ThreadAffinity"):
        library.InferenceSession(str(attention_bundle / "target.onnx"), options, providers=["CPUExecutionProvider"])


def test_providers_are_asked_for_by_their_names(attention_bundle: Path, library: Any) -> None:
    for provider in ("XnnpackExecutionProvider", "CUDAExecutionProvider", "NoSuchExecutionProvider"):
        if provider not in library.get_available_providers():
            with pytest.raises(Exception, match=r"ONNXRuntimeError"):
                library.InferenceSession(str(attention_bundle / "target.onnx"), library.SessionOptions(), providers=[provider])


def test_only_memory_of_the_cpu_is_bound(attention_bundle: Path, library: Any) -> None:
    binding = session(library, attention_bundle / "target.onnx").io_binding()
    with pytest.raises(Exception, match="cuda 0 cannot be bound"):
        binding.bind_input("input_ids", "cuda", 0, np.int64, [1, 1], 0)


def test_everything_is_freed(attention_bundle: Path, library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many releases as objects: sessions, bindings, values, options."""
    counts = dict.fromkeys(RELEASE_FUNCTIONS, 0)
    functions = library.api._functions
    for name in RELEASE_FUNCTIONS:

        def counted(handle: int, name: str = name, release: Any = functions[name]) -> None:
            counts[name] += 1
            release(handle)

        monkeypatch.setitem(functions, name, counted)
    monkeypatch.setenv(LIBRARY_VARIABLE, str(wheel_library()))
    monkeypatch.setattr("edgespec.runtime.providers.session.import_onnxruntime", lambda: library)
    passes(attention_bundle)
    options = library.RunOptions()
    del options
    gc.collect()
    assert counts["ReleaseSession"] == counts["ReleaseSessionOptions"] == counts["ReleaseRunOptions"] == 1
    assert counts["ReleaseIoBinding"] == 4, "one for each width and number of rows"
    assert counts["ReleaseValue"] >= 4 * 14
    assert counts["ReleaseTypeInfo"] == 15


def test_the_table_has_no_entry_twice() -> None:
    entries = [entry for entry, _ in STATUS_FUNCTIONS.values()] + list(RELEASE_FUNCTIONS.values())
    assert len(entries) == len(set(entries))
    assert max(entries) == 216, "the youngest function that version 12 of the C API has for us"


def test_without_the_package_the_systems_library_serves(monkeypatch: pytest.MonkeyPatch, library: Any) -> None:
    monkeypatch.delenv(LIBRARY_VARIABLE, raising=False)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setattr("edgespec.runtime.ort.library.NAMES", (str(wheel_library()),))
    assert import_onnxruntime() is library
    monkeypatch.setattr("edgespec.runtime.ort.library.NAMES", ())
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)  # noqa: ARG005
    with pytest.raises(RuntimeFailure, match=r"no ONNX Runtime.*import of onnxruntime halted.*EDGESPEC_ORT_LIB"):
        import_onnxruntime()


def test_libraries_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: str) -> str:
        monkeypatch.setenv(LIBRARY_VARIABLE, path)
        with pytest.raises(RuntimeFailure) as caught:
            import_onnxruntime()
        return str(caught.value)

    (tmp_path / "text.so").write_text("no library")
    assert "cannot be opened as a library" in refused(str(tmp_path / "none.so"))
    assert "cannot be opened as a library" in refused(str(tmp_path / "text.so"))
    assert "not ONNX Runtime's library" in refused(_ctypes.__file__)


COMPILED = """
#include <stdint.h>
static const void *none(uint32_t version) { (void)version; return 0; }
static const char *version(void) { return VERSION; }
static const struct { const void *(*api)(uint32_t); const char *(*version)(void); } base = {none, version};
const void *OrtGetApiBase(void) { return &base; }
"""


@pytest.mark.parametrize(
    ("version", "message"), [("1.15.1", "is ONNX Runtime 1.15.1; edgespec needs 1.20"), ("2.0.0", "no longer has version 12")]
)
def test_libraries_of_other_versions(tmp_path: Path, version: str, message: str) -> None:
    source, target = tmp_path / "ort.c", tmp_path / "libort.so"
    source.write_text(COMPILED)
    try:
        subprocess.run(["cc", "-shared", "-fPIC", f'-DVERSION="{version}"', "-o", target, source], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no C compiler")
    with pytest.raises(RuntimeFailure, match=message):
        open_library(str(target))


def test_both_backends_live_in_one_process(attention_bundle: Path, library: Any) -> None:
    import onnxruntime

    one, other = session(onnxruntime, attention_bundle / "target.onnx"), session(library, attention_bundle / "target.onnx")
    assert [item.name for item in one.get_inputs()] == [item.name for item in other.get_inputs()]


def test_the_process_ends_well_with_sessions_alive(attention_bundle: Path) -> None:
    code = (
        "import os, sys, threading, edgespec; engine = edgespec.load(sys.argv[1]); stream = engine.stream('hello', max_new_tokens=200); "
        "next(stream); threading.Thread(target=lambda: list(stream), daemon=True).start(); print('onnxruntime' in sys.modules)"
    )
    environment = {**os.environ, LIBRARY_VARIABLE: str(wheel_library())}
    done = subprocess.run([sys.executable, "-c", code, str(attention_bundle)], capture_output=True, text=True, env=environment, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")
