"""Conversations: what a turn computes, what is kept, edited, set aside, saved and restored."""

from __future__ import annotations

import dataclasses
import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from edgespec.errors import CapacityError, UsageError
from edgespec.runtime import Engine, load
from edgespec.runtime.conversations.prefix import Prefix
from edgespec.runtime.conversations.swap import Swap
from tests.helpers.bundles import alphabet_table, make_attention_bundle, make_lookup_bundle

OPTIONS: dict[str, Any] = {"drafter": "draft", "draft_length": 3, "max_new_tokens": 12, "ignore_eos": True}


def fresh_answer(bundle: Path, ids: list[int]) -> tuple[int, ...]:
    with load(bundle, threads=1) as engine:
        return engine.generate(ids, **{**OPTIONS, "drafter": "none"}).token_ids


def test_the_second_turn_computes_only_the_new_text(attention: Engine, attention_bundle: Path) -> None:
    chat = attention.chat("be brief", **OPTIONS)
    first = chat.send("a first question of some length").result()
    second = chat.send("and a second").result()
    # All of the first prompt and its answer but the last token, which no pass has read yet.
    kept = first.stats.prompt_tokens + first.stats.new_tokens - 1
    assert second.stats.reused_tokens == kept
    assert second.stats.prompt_tokens - kept == 1 + len("<user>and a second<assistant>") - len("<user>") - len("<assistant>") + 2
    draft, target = attention._model("draft"), attention._model("target")
    assert draft.tokens[:kept] == target.tokens[:kept]
    assert second.token_ids == fresh_answer(attention_bundle, target.tokens[: second.stats.prompt_tokens])
    assert [message["role"] for message in chat.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert chat.messages[-1]["content"] == second.text
    assert chat.stats is second.stats


def test_the_draft_runs_only_the_new_text_either(attention: Engine) -> None:
    chat = attention.chat(**OPTIONS)
    chat.send("a first question of some length").result()
    seen: list[int] = []
    run = attention._model("draft").run

    def counted(tokens: Any, *arguments: Any) -> Any:
        seen.append(len(tokens))
        return run(tokens, *arguments)

    attention._model("draft").run = counted  # type: ignore[method-assign]
    chat.send("and a second").result()
    assert max(seen) < len("and a second") + 9


def test_editing_an_earlier_turn_is_as_if_it_had_been_so(attention: Engine, attention_bundle: Path) -> None:
    chat = attention.chat(**OPTIONS)
    for text in ("one is first", "two is second", "three"):
        chat.send(text).result()
    edited = chat.edit(1, "two is other").result()
    assert edited.stats.reused_tokens > edited.stats.prompt_tokens - len("second<assistant>")
    assert [message["content"] for message in chat.messages[::2]] == ["one is first", "two is other"]
    prompt = attention._model("target").tokens[: edited.stats.prompt_tokens]
    assert edited.token_ids == fresh_answer(attention_bundle, prompt)
    assert chat.edit(-1, "two is other").result().token_ids == edited.token_ids
    for turn in (2, -3):
        with pytest.raises(UsageError, match="the conversation has 2 messages of the user"):
            chat.edit(turn, "x")


def test_an_answer_joins_as_far_as_it_came(attention: Engine) -> None:
    chat = attention.chat(**OPTIONS)
    stream = chat.send("hello")
    text = next(stream).text
    while not text:
        text += next(stream).text
    stream.close()
    assert [message["content"] for message in chat.messages] == ["hello", text]
    stream = chat.send("more")
    stream.stop()
    result = stream.result()
    assert (result.text, result.finish_reason) == ("", "stopped")
    assert len(chat.messages) == 2, "a message without an answer does not join"
    after = chat.send("more").result()
    assert after.finish_reason == "length"


def test_a_turn_that_is_refused_changes_nothing(attention: Engine) -> None:
    chat = attention.chat(**OPTIONS)
    chat.send("hello").result()
    before = chat.messages
    with pytest.raises(CapacityError):
        chat.send("x" * 400)
    for text, message in (("", "is empty"), (3, "expected a text"), (None, "expected a text")):
        with pytest.raises(UsageError, match=message):
            chat.send(text)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="top_k"):
        chat.send("x", do_sample=True, top_k=-1)
    stream = chat.send("y")
    next(stream)
    with pytest.raises(UsageError, match="generating already"):
        chat.send("z")
    with pytest.raises(UsageError, match="generating already"):
        chat.save("nowhere")
    stream.close()
    assert chat.messages[:2] == before


def test_a_stop_text_leaves_no_trace_in_the_next_turn(tmp_path: Path) -> None:
    with load(make_lookup_bundle(tmp_path / "b", draft_table=alphabet_table(), chat=True)) as engine:
        chat = engine.chat(drafter="draft", draft_length=4)
        assert chat.send("x", stop="ef").result().text == "abcd"
        chat.send("y", max_new_tokens=3).result()
        text = engine.tokenizer.decode(engine._model("target").tokens)
        assert text.startswith("xabcdyab")


def test_two_conversations_take_turns_without_computing_anew(attention: Engine) -> None:
    first, second = attention.chat(**OPTIONS), attention.chat(**OPTIONS)
    alone = [first.send(text).result() for text in ("the first one begins", "and goes on")]
    first.clear()
    assert first.messages == []
    again = first.send("the first one begins").result()
    second.send("the second is about something else").result()
    attention.generate("a generation of its own", **OPTIONS)
    more = first.send("and goes on").result()
    assert more.stats.reused_tokens == again.stats.prompt_tokens + again.stats.new_tokens - 1
    assert more.token_ids == alone[1].token_ids
    back = second.send("so it is").result()
    assert back.stats.reused_tokens > 40


def test_rows_are_set_aside_only_where_there_is_room() -> None:
    def rows(count: int) -> Prefix:
        return Prefix({"target": [1] * count}, {"target": [np.zeros((1, 1, count, 1), np.float32)]}, "exact")

    class Owner:
        pass

    swap, owners = Swap({}, 100), [Owner() for _ in range(3)]
    swap.put(owners[0], rows(10))
    swap.put(owners[1], rows(10))
    assert swap.get(owners[0])
    swap.put(owners[2], rows(10))
    assert swap.get(owners[0]) is None, "the longest waiting went"
    assert swap.get(owners[1])
    swap.put(owners[1], rows(30))
    assert swap.get(owners[1]) is None, "too large by itself"
    owners.pop()
    gc.collect()
    swap.put(owners[0], rows(20))
    assert len(swap._waiting) == 1


def test_saved_and_restored(attention_bundle: Path, tmp_path: Path) -> None:
    with load(attention_bundle, threads=1) as engine:
        chat = engine.chat("be brief", **OPTIONS)
        first = chat.send("a first question").result()
        chat.save(tmp_path / "chat.edgespec")
        expected = chat.send("and a second").result()
        engine.chat(**OPTIONS).send("something else").result()
        chat.save(tmp_path / "later.edgespec")
    with load(attention_bundle, threads=1) as engine:
        again = engine.restore_chat(tmp_path / "chat.edgespec", **OPTIONS)
        found = again.send("and a second").result()
        assert found.token_ids == expected.token_ids
        assert found.stats.reused_tokens == first.stats.prompt_tokens + first.stats.new_tokens - 1
        assert again.messages[:3] == chat.messages[:3]
        assert engine.restore_chat(tmp_path / "later.edgespec").messages == chat.messages
    assert sorted(path.name for path in tmp_path.glob("*.edgespec")) == ["chat.edgespec", "later.edgespec"]
    with load(attention_bundle, threads=2) as engine:
        found = engine.restore_chat(tmp_path / "chat.edgespec", **OPTIONS).send("and a second").result()
        assert found.stats.reused_tokens == 0, "two threads need not give the bits of one"


def test_a_file_of_another_bundle_or_a_damaged_one(attention: Engine, tmp_path: Path) -> None:
    chat = attention.chat(**OPTIONS)
    chat.send("hello").result()
    file = tmp_path / "chat.edgespec"
    chat.save(file)
    with load(make_attention_bundle(tmp_path / "other", seed=5, chat=True)) as other, pytest.raises(UsageError, match="another bundle"):
        other.restore_chat(file)
    for place in (tmp_path / "no" / "folder", tmp_path):
        with pytest.raises(UsageError, match="cannot be written"):
            chat.save(place)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []
    with pytest.raises(UsageError, match="no such file"):
        attention.restore_chat(tmp_path / "nothing")
    data = file.read_bytes()
    for damaged in (b"", b"text", data[: len(data) // 2], data[:200] + bytes(100) + data[300:]):
        file.write_bytes(damaged)
        with pytest.raises(UsageError, match="damaged") as caught:
            attention.restore_chat(file)
        assert "\n" not in str(caught.value)
    file.write_bytes(data)
    with np.load(file) as archive:
        header = json.loads(archive["header"].tobytes())
        arrays = {name: archive[name] for name in archive.files}
    for changes in (
        {"state": {}},
        {"tokens": {"draft": [1]}},
        {"state": {"messages": [{"role": "king", "content": "x"}], "spoken": []}},
        {"format": 99},
    ):
        arrays["header"] = np.frombuffer(json.dumps({**header, **changes}).encode(), np.uint8)
        np.savez(tmp_path / "edited.npz", **arrays)
        with pytest.raises(UsageError):
            attention.restore_chat(tmp_path / "edited.npz")
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez_compressed(tmp_path / "edited.npz", **arrays)
    with pytest.raises(UsageError, match="it is compressed"):
        attention.restore_chat(tmp_path / "edited.npz")


def test_messages_that_are_none(attention: Engine, tmp_path: Path) -> None:
    for messages, message in (
        ([{"role": "king", "content": "x"}], r"messages\[0\]: no role 'king'; there are system, developer, user, assistant, tool"),
        (["x"], r"messages\[0\]: expected a role"),
        ([{"role": "user", "content": "x"}, {"content": "x"}], r"messages\[1\]: expected a role"),
    ):
        with pytest.raises(UsageError, match=message):
            attention.chat(messages=messages)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="unknown option"):
        attention.chat(nonsense=1)
    with load(make_lookup_bundle(tmp_path / "b")) as engine, pytest.raises(UsageError, match="no chat template"):
        engine.chat()


def test_a_template_that_raises_is_refused_at_the_call(tmp_path: Path) -> None:
    bundle = make_lookup_bundle(tmp_path / "b", chat=True)
    (bundle / "chat_template.jinja").write_text(
        "{{ raise_exception('no system role') }}".ljust((bundle / "chat_template.jinja").stat().st_size)
    )
    with load(bundle) as engine, pytest.raises(UsageError, match="refuses these messages: no system role"):
        engine.chat().send("x")


def test_where_no_width_is_proven_a_conversation_still_keeps_its_rows(attention: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    unproven = dataclasses.replace(attention.exactness, grade="fast")
    monkeypatch.setitem(attention.__dict__, "exactness", unproven)
    chat = attention.chat(**OPTIONS)
    first = chat.send("a first question").result()
    assert chat.send("second").result().stats.reused_tokens == first.stats.prompt_tokens + first.stats.new_tokens - 1
    assert attention.chat(messages=chat.messages, **OPTIONS).send("third").result().stats.reused_tokens == 0


def test_what_was_written_is_kept_only_where_a_token_ends(tmp_path: Path) -> None:
    """Between the turns of this template stands no special token, so the end of an answer and what follows could be one token."""
    bundle = make_lookup_bundle(tmp_path / "b", chat=True)
    tokenizer = tokenizers.Tokenizer.from_file(str(bundle / "tokenizer.json"))
    data = json.loads(tokenizer.to_str())
    data["model"]["vocab"]["c."] = 258  # in place of a special token, so that the vocabulary keeps its size
    data["model"]["merges"] = [["c", "."]]
    data["added_tokens"] = [token for token in data["added_tokens"] if token["id"] != 258]
    (bundle / "tokenizer.json").write_text(json.dumps(data))
    template = "{% for message in messages %}{{ message.content }}{{ '.' if message.role == 'assistant' else '' }}{% endfor %}"
    (bundle / "chat_template.jinja").write_text(template)
    manifest = json.loads((bundle / "edgespec.json").read_text())
    for entry in manifest["files"]:
        entry["size"] = (bundle / entry["name"]).stat().st_size
    (bundle / "edgespec.json").write_text(json.dumps(manifest))
    with load(bundle) as engine:
        chat = engine.chat(drafter="none", exactness="fast")
        assert chat.send("a", max_new_tokens=2).result().text == "bc"
        second = chat.send("x", max_new_tokens=1).result()
        assert engine.encode("abc.x", chat=False) == [97, 98, 258, 120]
        assert second.stats.prompt_tokens == 4
        assert second.stats.reused_tokens == 2
