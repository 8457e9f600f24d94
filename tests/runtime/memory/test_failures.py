"""Passes and sessions that find no memory: the text stays the same, or the error is clear and the conversation survives."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgespec.errors import OutOfMemory, UsageError
from edgespec.runtime import Engine, GenerationResult, load
from edgespec.runtime.memory.measure import usage
from edgespec.runtime.models.model import Model
from tests.helpers.bundles import make_attention_bundle

PROMPT = [5, 6, 7, 8, 9] * 40
NO_MEMORY = "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : bad_alloc"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_attention_bundle(tmp_path_factory.mktemp("failures") / "b", draft_noise=0.1, chat=True, capacity=512)


@pytest.fixture
def engine(bundle: Path) -> Iterator[Engine]:
    with load(bundle, threads=1) as engine:
        yield engine


class Failing:
    """Stands before a model's session: passes for which ``fails`` says so end as ONNX Runtime's do when memory runs out."""

    def __init__(self, model: Model, fails: Callable[[int], bool]) -> None:
        self._session, self._model, self._fails = model._session, model, fails
        self.failures = 0
        model._session = self  # type: ignore[assignment]

    def run_with_iobinding(self, binding: Any) -> None:
        width = int(self._model._seqlens[0]) + 1 - self._model.length
        if self._fails(width):
            self.failures += 1
            raise RuntimeError(NO_MEMORY)
        self._session.run_with_iobinding(binding)

    def io_binding(self) -> Any:
        return self._session.io_binding()

    def stop(self) -> None:
        self._model._session = self._session


def expected(bundle: Path, **options: Any) -> GenerationResult:
    with load(bundle, threads=1) as engine:
        return engine.generate(PROMPT, drafter="none", max_new_tokens=40, **options)


def test_a_draft_that_finds_no_memory_is_dropped(engine: Engine, bundle: Path) -> None:
    assert engine.exactness
    calls = iter(range(1000))
    failing = Failing(engine._model("draft"), lambda _: next(calls) > 6)
    result = engine.generate(PROMPT, drafter="draft", draft_length=3, max_new_tokens=40)
    assert result.token_ids == expected(bundle).token_ids
    assert failing.failures == 1
    assert 0 < result.stats.accepted < 40
    assert "there is no memory for it" in str(result.stats.speculation_off)
    assert "draft" not in engine.drafters
    again = engine.generate(PROMPT, drafter="draft", max_new_tokens=10)
    assert again.stats.drafted == 0
    assert "there is no memory for it" in str(again.stats.speculation_off)


def test_wide_passes_that_find_no_memory_get_narrower(engine: Engine, bundle: Path) -> None:
    """First the draft goes; then chunks of the prompt and verification passes are halved until they fit."""
    assert engine.exactness
    failing = Failing(engine._model("target"), lambda width: width > 5)
    result = engine.generate(PROMPT, drafter="ngram", draft_length=7, max_new_tokens=40)
    assert result.token_ids == expected(bundle).token_ids
    assert failing.failures > 1
    assert result.stats.degraded[0] == "freed what is not in use, since a pass of 128 tokens found none"
    assert result.stats.degraded[-1].startswith("passes of at most 4 tokens")
    assert result.stats.drafted > 0


def test_the_draft_goes_first(engine: Engine, bundle: Path) -> None:
    assert engine.exactness
    once = iter([True])
    Failing(engine._model("target"), lambda width: width == 4 and next(once, False))
    result = engine.generate(PROMPT, drafter="draft", draft_length=3, max_new_tokens=40)
    assert result.token_ids == expected(bundle).token_ids
    assert result.stats.degraded == ["dropped the draft model, since a pass of 4 tokens found none"]
    assert set(engine._models.loaded) == {"target"}


def test_a_conversation_survives_when_nothing_helps(engine: Engine, bundle: Path) -> None:
    def talk(chat: Any) -> tuple[str, ...]:
        return tuple(chat.send(text, max_new_tokens=12).result().text for text in ("hello there", "and then"))

    with load(bundle, threads=1) as other:
        wanted = talk(other.chat())
    chat = engine.chat()
    first = chat.send("hello there", max_new_tokens=12).result().text
    failing = Failing(engine._model("target"), lambda _: True)
    with pytest.raises(OutOfMemory, match="bad_alloc"):
        chat.send("and then", max_new_tokens=12).result()
    failing.stop()
    second = chat.send("and then", max_new_tokens=12).result()
    assert (first, second.text) == wanted
    assert second.stats.reused_tokens > 0


def test_other_failures_are_not_hidden(engine: Engine) -> None:
    assert engine.exactness
    model = engine._model("target")

    def broken(_: Any) -> None:
        raise RuntimeError("[ONNXRuntimeError] : 1 : FAIL : something else")

    model._session = type("Broken", (Failing,), {"run_with_iobinding": staticmethod(broken)})(model, lambda _: False)
    with pytest.raises(Exception, match="something else") as caught:
        engine.generate(PROMPT, max_new_tokens=5)
    assert not isinstance(caught.value, OutOfMemory)


def test_trim_gives_back_and_the_conversation_goes_on(bundle: Path) -> None:
    def talk(engine: Engine, between: Callable[[], None]) -> list[str]:
        chat, waits = engine.chat(drafter="draft", draft_length=3, max_new_tokens=30), engine.chat(max_new_tokens=5)
        texts = [waits.send("wait").result().text]
        for text in ("hello", "and then", "at last"):
            texts.append(chat.send(text).result().text)
            between()
        return [*texts, waits.send("again").result().text]

    with load(bundle, threads=1) as engine:
        wanted = talk(engine, lambda: None)
    with load(bundle, threads=1) as engine:

        def trim() -> None:
            length = engine._model("target").length
            engine.trim()
            assert set(engine._models.loaded) == {"target"}
            assert engine._model("target").length == length

        assert talk(engine, trim) == wanted


def test_trim_during_a_generation(engine: Engine) -> None:
    options: dict[str, Any] = {"drafter": "draft", "draft_length": 3, "max_new_tokens": 40}
    wanted = engine.generate(PROMPT, **options).text
    pieces = []
    for piece in engine.stream(PROMPT, **options):
        pieces.append(piece.text)
        thread = threading.Thread(target=engine.trim)
        thread.start()
        thread.join()
    assert "".join(pieces) == wanted
    assert set(engine._models.loaded) == {"target"}
    assert engine.generate(PROMPT, **options).text == wanted


def test_a_generation_gives_back_once_when_it_is_asked_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"drafter": "draft", "draft_length": 3, "max_new_tokens": 40}
    engine.generate(PROMPT, **options)
    given_back: list[bool] = []
    give_back = engine._turns._give_back
    monkeypatch.setattr(engine._turns, "_give_back", lambda drafts: (given_back.append(drafts), give_back(drafts)))
    for index, _ in enumerate(engine.stream(PROMPT, **options)):
        if index == 2:
            engine.trim()
    assert given_back == [False, True], "before the next piece, and the draft model at the end"
    engine.generate(PROMPT, **options)
    assert len(given_back) == 2


def test_a_generation_waits_for_what_is_short(engine: Engine) -> None:
    """Memory that is being given back, or a measurement in another thread, is no other generation."""
    begun, go_on = threading.Event(), threading.Event()

    def measure() -> None:
        with engine._turns.alone():
            begun.set()
            go_on.wait(30)
            engine.trim()  # comes when the measurement is over

    wanted = engine.generate(PROMPT, max_new_tokens=5, drafter="draft").text
    measuring = threading.Thread(target=measure)
    measuring.start()
    assert begun.wait(30)
    threading.Timer(0.1, go_on.set).start()
    assert engine.generate(PROMPT, max_new_tokens=5).text == wanted
    measuring.join(30)
    assert not engine._turns.generating
    with engine.stream(PROMPT, max_new_tokens=5) as stream:
        next(stream)
        with pytest.raises(UsageError, match="generating already"):
            engine.generate(PROMPT)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pages are given back on Linux only")
def test_spare_rows_go_back_to_the_system(tmp_path: Path) -> None:
    bundle = make_attention_bundle(tmp_path / "b", capacity=65_536)
    with load(bundle, threads=1) as engine:
        model = engine._model("target")
        for cache in model._caches:
            cache[:] = 1
        before = usage().private
        model.tokens[:] = [1] * 1000
        engine.trim()
        assert before - usage().private > 0.9 * 65_536 * 4 * 64
        assert all((cache[:, :, :1000] == 1).all() for cache in model._caches)


LIMITED = """
    import json, resource, sys
    import numpy.random
    import edgespec
    from edgespec.errors import EdgespecError
    from edgespec.runtime.models import models
    def limit(extra):
        size = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize:")) * 1024
        resource.setrlimit(resource.RLIMIT_AS, (size + extra, resource.RLIM_INFINITY))
    bundle, extra, when = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    prompt = [5, 6, 7, 8, 9] * 40
    try:
        if when == "load":  # the libraries and the tokenizer are there: a library in Rust aborts if it gets no memory
            make = models.open_model
            def limited(*arguments, **options):
                limit(extra)
                return make(*arguments, **options)
            models.open_model = limited
        engine = edgespec.load(bundle, threads=1)
        engine.generate(prompt[:20], drafter="draft", draft_length=3, max_new_tokens=8)
        if when == "run":
            limit(extra)
        result = engine.generate(prompt, drafter="draft", draft_length=3, max_new_tokens=40)
        print(json.dumps({"ids": list(result.token_ids), "degraded": result.stats.degraded, "off": result.stats.speculation_off}))
    except EdgespecError as error:
        print(json.dumps({"error": str(error)}))
    except MemoryError:
        print(json.dumps({"error": "MemoryError"}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="address space is limited on Linux only")
@pytest.mark.parametrize("when", ["load", "run"])
def test_a_limited_address_space_never_kills(bundle: Path, when: str) -> None:
    """With ever more room: an error in one line at first, then the text; no crash in between."""
    wanted = list(expected(bundle).token_ids)
    outcomes = []
    for extra in (0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 32):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(LIMITED), str(bundle), str(extra * 2**20), when], capture_output=True, text=True
        )
        assert done.returncode == 0, (extra, done.stderr[-500:])
        found = json.loads(done.stdout)
        assert found.get("ids", wanted) == wanted
        outcomes.append("ids" in found)
    assert outcomes[-1]
    assert not outcomes[0] or when == "run"


def test_where_there_is_no_thread_to_load_in_the_target_is_loaded_all_the_same(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        engine = load(bundle, threads=1)
    with engine:
        assert engine.generate(PROMPT, max_new_tokens=40).token_ids == expected(bundle).token_ids
