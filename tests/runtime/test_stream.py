"""Stopping and closing from other threads, async iteration, several prompts, and text around an early end."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from edgespec.errors import CapacityError, UsageError
from edgespec.runtime import Engine, GenerationOptions, load
from tests.helpers.bundles import alphabet_table, make_lookup_bundle


@pytest.fixture(scope="module")
def endless_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The alphabet for minutes."""
    return make_lookup_bundle(tmp_path_factory.mktemp("endless") / "b", draft_table=alphabet_table(), capacity=2_000_000, chat=True)


OPTIONS = {"max_new_tokens": 1_900_000, "exactness": "fast", "chat": False, "drafter": "draft", "draft_length": 3}


@pytest.mark.parametrize("how", ["engine", "stream", "close"])
def test_another_thread_ends_a_generation(endless_bundle: Path, how: str) -> None:
    with load(endless_bundle, threads=1) as engine:
        stream = engine.stream("a", **OPTIONS)
        action = {"engine": engine.stop, "stream": stream.stop, "close": stream.close}[how]
        pieces = [next(stream) for _ in range(4)]
        timer = threading.Timer(0.05, action)
        timer.start()
        pieces.extend(stream)
        timer.join()
        if how != "close":
            assert pieces[-1].finish_reason == "stopped"
        text = "".join(piece.text for piece in pieces)
        assert text == ("bcdefghijklmnopqrstuvwxyza" * (len(text) // 26 + 1))[: len(text)]
        model = engine._model("target")
        assert bytes(model.tokens).decode() == ("abcdefghijklmnopqrstuvwxyz" * (model.length // 26 + 1))[: model.length], (
            "only accepted rows"
        )
        assert engine.generate("x", **{**OPTIONS, "max_new_tokens": 3}).text == "yza"


def test_a_signal_handler_may_close_the_stream_it_interrupted(endless_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(endless_bundle, threads=1) as engine:
        model = engine._model("target")
        stream, run = engine.stream("a", **OPTIONS), model.run

        def interrupted(*arguments: Any, **options: Any) -> Any:
            if model.length > 20:
                stream.close()
            return run(*arguments, **options)

        monkeypatch.setattr(model, "run", interrupted)
        assert list(stream)[-1].finish_reason == "stopped"
        monkeypatch.undo()
        assert engine.generate("x", **{**OPTIONS, "max_new_tokens": 3}).text == "yza"


def test_stopped_within_the_prompt(endless_bundle: Path) -> None:
    with load(endless_bundle, threads=1) as engine:
        stream = engine.stream([97] * 500_000, **OPTIONS)
        threading.Timer(0.05, stream.stop).start()
        result = stream.result()
        assert (result.text, result.token_ids, result.finish_reason) == ("", (), "stopped")
        assert 0 < engine._model("target").length < 500_000
        assert engine.generate("x", **{**OPTIONS, "max_new_tokens": 3}).text == "yza"


def test_what_was_held_back_is_shown_when_stopped(endless_bundle: Path) -> None:
    with load(endless_bundle, threads=1) as engine:
        stream = engine.stream("a", stop=["fgX"], **{**OPTIONS, "draft_length": 1})
        text = ""
        while not text.endswith("e"):
            text += next(stream).text
        stream.stop()  # f came in the same block and is held back
        rest = list(stream)
        assert (rest[-1].finish_reason, text + "".join(piece.text for piece in rest)) == ("stopped", "bcdef")


def test_stop_without_a_generation_is_nothing(attention: Engine) -> None:
    attention.stop()
    assert attention.generate("hi", max_new_tokens=2).stats.new_tokens == 2


def test_an_async_stream_does_not_block_the_loop(endless_bundle: Path) -> None:
    async def run(engine: Engine) -> tuple[str, int]:
        ticks, text = 0, ""

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.001)
                ticks += 1

        ticker = asyncio.create_task(tick())
        async for piece in engine.stream("a", **{**OPTIONS, "max_new_tokens": 300}):
            text += piece.text
        ticker.cancel()
        return text, ticks

    with load(endless_bundle, threads=1) as engine:
        text, ticks = asyncio.run(run(engine))
        assert text == engine.generate("a", **{**OPTIONS, "max_new_tokens": 300}).text
        assert ticks > 3


def test_a_cancelled_task_frees_the_engine(endless_bundle: Path) -> None:
    async def run(engine: Engine) -> None:
        async def consume() -> None:
            async for _ in engine.stream("a", **OPTIONS):
                pass

        task = asyncio.create_task(consume())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with load(endless_bundle, threads=1) as engine:
        asyncio.run(run(engine))
        for _ in range(100):
            if not engine._turns.generating:
                break
            time.sleep(0.01)
        assert engine.generate("x", **{**OPTIONS, "max_new_tokens": 3}).text == "yza"


def test_a_stream_is_a_context_manager(attention: Engine) -> None:
    with attention.stream("hello", max_new_tokens=30) as stream:
        next(stream)
    assert attention.generate("hello", max_new_tokens=2).stats.new_tokens == 2
    assert list(stream) == []


def test_many_prompts_share_their_beginning(attention: Engine) -> None:
    shared = list(range(60))
    prompts = [[*shared, 1, 2], [*shared, 3], [7, 8]]
    results = attention.generate_many(prompts, max_new_tokens=8, ignore_eos=True)
    assert [result.stats.reused_tokens for result in results] == [0, 60, 0]
    assert [result.token_ids for result in results] == [
        attention.generate(prompt, max_new_tokens=8, ignore_eos=True).token_ids for prompt in prompts
    ]
    with pytest.raises(CapacityError):
        attention.generate_many(["fine", [1] * 500])
    with pytest.raises(UsageError, match="prompt is empty"):
        attention.generate_many(["fine", ""])
    assert attention.generate_many([]) == []


def test_options_as_an_object_and_what_comes_on_top(attention: Engine) -> None:
    options = GenerationOptions(max_new_tokens=5, ignore_eos=True, stop=("nothing like it",))
    assert attention.generate("hi", options).stats.new_tokens == 5
    assert attention.generate("hi", options, max_new_tokens=3).stats.new_tokens == 3
    assert attention.generate_many(["hi"], options, max_new_tokens=3)[0].stats.new_tokens == 3
    assert GenerationOptions.of(options, max_new_tokens=3).stop == options.stop
    with pytest.raises(UsageError, match="max_new_tokens: 0"):
        attention.stream("hi", options, max_new_tokens=0)
    with pytest.raises(UsageError, match="expected GenerationOptions, found dict"):
        attention.stream("hi", {"max_new_tokens": 3})  # type: ignore[arg-type]


def test_every_option_is_described() -> None:
    """Editors and notebooks show the text under a field; one without it would be a name and nothing more."""
    import ast
    import dataclasses
    import inspect

    (tree,) = ast.parse(inspect.getsource(GenerationOptions)).body
    assert isinstance(tree, ast.ClassDef)
    described = {
        node.target.id
        for node, after in zip(tree.body, tree.body[1:], strict=False)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(after, ast.Expr)
    }
    assert described == {field.name for field in dataclasses.fields(GenerationOptions)}
