"""The protocol, without a network in between."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from edgespec.demo.protocol import Settings
from edgespec.demo.service import BUG, BUSY, NO_BUNDLE, Service, checked_messages
from edgespec.errors import UsageError
from edgespec.runtime import load
from tests.demo.conftest import WAIT_S, Recorded
from tests.helpers.bundles import make_lookup_bundle


def say(service: Service, text: str = "hello") -> None:
    service.handle({"type": "send", "text": text})
    assert service.wait(WAIT_S)


def test_an_answer_is_that_of_the_engine(service: Service, recorded: Recorded, bundles: Path) -> None:
    say(service)
    pieces = recorded.of("piece")
    with load(bundles / "first", threads=1) as engine:
        result = engine.chat().send("hello", max_new_tokens=40, drafter="draft", draft_length=3).result()
    assert "".join(event["text"] for event in pieces) == result.text
    finished = recorded.of("finished")[-1]
    assert (finished["arm"], finished["reason"], finished["new_tokens"]) == ("chat", "length", 40)
    assert finished["accepted"] == result.stats.accepted > 0
    assert any(event["accepted"] for event in pieces)
    assert not all(event["accepted"] for event in pieces)
    assert finished["tokens_per_pass"] > 1
    assert 0 < finished["acceptance"] <= 1
    kinds = [event["type"] for event in recorded.events]
    assert kinds.index("started") < kinds.index("piece") < kinds.index("finished")
    assert kinds[-1] == "state"


def test_the_state_says_everything(service: Service) -> None:
    say(service)
    state = service.state()
    assert state["bundle"]["name"] == "first"
    assert state["bundle"]["context"] == 512
    assert {"draft", "ngram"} <= set(state["bundle"]["drafters"])
    assert [message["role"] for message in state["messages"]] == ["user", "assistant"]
    assert state["messages"][0]["parts"] == [["hello", False]]
    assert state["messages"][1]["figures"]["new_tokens"] == 40
    assert (state["busy"], state["settings"]["threads"], state["abilities"]) == ("", 1, ["import"])
    assert state["bundles"] == ["first", "mute"]
    assert 0 < state["memory"]["used"] <= state["memory"]["peak"]
    json.dumps(state)


def test_a_conversation_goes_on_and_is_forgotten(service: Service, recorded: Recorded) -> None:
    say(service)
    say(service, "and more")
    assert len(service.state()["messages"]) == 4
    service.handle({"type": "clear"})
    assert service.wait(WAIT_S)
    assert service.state()["messages"] == []
    recorded.clear()
    say(service)
    first = "".join(event["text"] for event in recorded.of("piece"))
    recorded.clear()
    service.handle({"type": "clear"})
    assert service.wait(WAIT_S)
    say(service)
    assert "".join(event["text"] for event in recorded.of("piece")) == first


def test_stop_keeps_what_was_written(service: Service, recorded: Recorded) -> None:
    service.handle({"type": "settings", "values": {"max_new_tokens": 400, "drafter": "none"}})
    assert service.wait(WAIT_S)
    service.handle({"type": "send", "text": "hello"})
    recorded.wait_for(lambda event: event["type"] == "piece")
    with pytest.raises(UsageError, match=BUSY):
        service.handle({"type": "send", "text": "too early"})
    service.handle({"type": "stop"})
    assert service.wait(WAIT_S)
    finished = recorded.of("finished")[-1]
    assert finished["reason"] == "stopped"
    assert finished["new_tokens"] < 400
    text = "".join(event["text"] for event in recorded.of("piece"))
    assert "".join(part for part, _ in service.state()["messages"][1]["parts"]) == text


def test_a_comparison_has_two_arms_and_leaves_the_conversation_alone(service: Service, recorded: Recorded) -> None:
    say(service)
    recorded.clear()
    service.handle({"type": "compare", "text": "count"})
    assert service.wait(WAIT_S)
    compared = recorded.of("compared")[0]
    assert compared["equal"]
    assert compared["plain"]["tokens_per_pass"] == 1.0
    assert compared["plain"]["accepted"] == 0 < compared["speculative"]["accepted"]
    assert [event["arm"] for event in recorded.of("started")] == ["plain", "speculative"]
    assert compared["plain"]["new_tokens"] == compared["speculative"]["new_tokens"] == 40
    assert len(service.state()["messages"]) == 2


def test_it_survives_the_end_of_the_process(service: Service, recorded: Recorded, tmp_path: Path, bundles: Path) -> None:
    say(service)
    service.handle({"type": "settings", "values": {"max_new_tokens": 7}})
    assert service.wait(WAIT_S)
    messages = service.state()["messages"]
    again = Service(tmp_path / "state", bundles, recorded)
    try:
        again.open_last()
        assert again.wait(WAIT_S)
        state = again.state()
        assert (state["bundle"]["name"], state["messages"]) == ("first", messages)
        assert state["settings"]["max_new_tokens"] == 7
        say(again, "go on")
        assert len(again.state()["messages"]) == 4
    finally:
        again.close()


def test_killed_in_the_middle_of_an_answer(service: Service, recorded: Recorded, tmp_path: Path) -> None:
    service.handle({"type": "send", "text": "hello"})
    recorded.wait_for(lambda event: event["type"] == "piece")
    service.save()
    stored = json.loads((tmp_path / "state" / "conversation.json").read_text(encoding="utf-8"))
    assert [message["role"] for message in stored["messages"]] == ["user", "assistant"]
    assert service.wait(WAIT_S)


def test_settings_that_reload_and_settings_that_cannot_be(service: Service, recorded: Recorded) -> None:
    say(service)
    recorded.clear()
    service.handle({"type": "settings", "values": {"memory_budget": "2GB", "temperature": 0.8, "drafter": "draft"}})
    assert service.wait(WAIT_S)
    assert recorded.of("loading")
    state = service.state()
    assert state["memory"]["budget"] == 2 * 10**9
    assert len(state["messages"]) == 2, "the conversation outlives a reload"
    say(service)
    service.handle({"type": "settings", "values": {"memory_budget": "1MB"}})
    assert service.wait(WAIT_S)
    assert "budget" in recorded.of("error")[-1]["text"]
    assert service.state()["settings"]["memory_budget"] == "2GB"
    assert service.state()["bundle"]["name"] == "first", "it goes on as before"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"memory_budget": "much"}, "memory budget"),
        ({"threads": -1}, "threads: expected a number from 0"),
        ({"threads": True}, "threads"),
        ({"max_new_tokens": 0}, "max new tokens"),
        ({"temperature": 9}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"drafter": ""}, "drafter"),
        ({"colour": 1}, "expected some of"),
        ([], "expected some of"),
    ],
)
def test_settings_out_of_range(values: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Settings().changed(values)


def test_a_drafter_that_the_bundle_has_not(service: Service, recorded: Recorded) -> None:
    service.handle({"type": "settings", "values": {"drafter": "oracle"}})
    assert service.wait(WAIT_S)
    assert "oracle" in recorded.of("error")[0]["text"]
    assert service.state()["settings"]["drafter"] == "draft"


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"type": 1}', '{"type": "fly"}', '{"type": "send"}', '{"type": "send", "text": " "}', "9" * 10**7]
)
def test_commands_that_are_none(service: Service, recorded: Recorded, text: str) -> None:
    recorded.clear()
    service.receive(text)
    assert [event["type"] for event in recorded.events] == ["error"]
    assert recorded.events[0]["text"] != BUG


@pytest.mark.parametrize("name", ["../first", "other", "", None, 3, "/etc"])
def test_only_bundles_that_are_there_can_be_opened(service: Service, name: Any) -> None:
    with pytest.raises(UsageError, match="no such bundle"):
        service.handle({"type": "open", "name": name})


def test_a_bundle_that_cannot_chat(service: Service, recorded: Recorded) -> None:
    service.handle({"type": "open", "name": "mute"})
    assert service.wait(WAIT_S)
    assert "no chat template" in recorded.of("error")[0]["text"]
    recorded.clear()
    say(service)
    assert recorded.of("error")[0]["text"] == NO_BUNDLE


def test_a_damaged_bundle_is_one_sentence(tmp_path: Path, bundles: Path, recorded: Recorded) -> None:
    shutil.copytree(bundles / "first", tmp_path / "b" / "first")
    (tmp_path / "b" / "first" / "draft.onnx").write_bytes(b"")
    service = Service(tmp_path / "state", tmp_path / "b", recorded)
    service.open_last()
    assert service.wait(WAIT_S)
    text = recorded.of("error")[0]["text"]
    assert text.startswith("First/draft.onnx: has 0 bytes")
    assert text.endswith(".")
    service.close()


def test_a_prompt_that_does_not_fit(service: Service, recorded: Recorded) -> None:
    say(service, "x" * 600)
    assert recorded.of("error")[0]["text"] != BUG
    assert service.state()["messages"] == []
    say(service)
    assert len(service.state()["messages"]) == 2


def test_a_bug_is_no_traceback(service: Service, recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_answer", lambda text: 1 / 0)  # noqa: ARG005
    say(service)
    assert recorded.of("error")[0]["text"] == BUG
    assert service.state()["busy"] == ""


def test_the_devices_call_for_memory(service: Service, recorded: Recorded) -> None:
    """Between two answers and in the middle of one: what is given back comes again, and the conversation stays."""
    say(service)
    service.trim()
    assert service._engine is not None
    assert list(service._engine._models.loaded) == ["target"], "the draft went"
    recorded.clear()
    service.handle({"type": "send", "text": "and more"})
    recorded.wait_for(lambda event: event["type"] == "piece")
    service.trim()
    assert service.wait(WAIT_S)
    assert recorded.of("notice")
    assert recorded.of("finished")[-1]["new_tokens"] == 40
    assert recorded.of("finished")[-1]["accepted"] > 0
    assert len(service.state()["messages"]) == 4


def test_stored_conversations_from_strangers() -> None:
    user, model = {"role": "user", "parts": [["hi", False]]}, {"role": "assistant", "parts": [["yo", True]], "figures": {}}
    assert checked_messages([user, model]) == [user, model]
    assert checked_messages([user]) == []
    assert checked_messages([model, user]) == []
    assert checked_messages([user, model, {"role": "system", "parts": []}]) == [user, model]
    assert checked_messages([{"role": "user"}, 3]) == checked_messages("text") == checked_messages(None) == []


@pytest.mark.parametrize("stored", [{"bundle": "first"}, {"bundle": "first", "messages": 5}, []])
def test_a_damaged_conversation_is_begun_anew(tmp_path: Path, bundles: Path, recorded: Recorded, stored: object) -> None:
    state = tmp_path / "state"
    state.mkdir(exist_ok=True)
    (state / "conversation.json").write_text(json.dumps(stored), encoding="utf-8")
    service = Service(state, bundles, recorded)
    try:
        service.open(bundles / "first")
        assert service.wait(WAIT_S)
        assert service.state()["messages"] == []
        say(service)
        assert len(service.state()["messages"]) == 2
    finally:
        service.close()


def test_load_options_hold_for_every_bundle(tmp_path: Path, bundles: Path, recorded: Recorded) -> None:
    service = Service(tmp_path / "other", bundles, recorded, load_options={"context": 40})
    try:
        service.open(bundles / "first")
        assert service.wait(WAIT_S)
        assert service._engine is not None
        assert service._engine.capacity == 40
    finally:
        service.close()


def test_an_answer_that_ends_by_itself(tmp_path: Path, recorded: Recorded) -> None:
    table = [ord("a")] * 259
    table[ord("a")] = 256
    bundle = make_lookup_bundle(tmp_path / "b" / "short", table, chat=True)
    service = Service(tmp_path / "state", bundle.parent, recorded)
    service.open(bundle)
    assert service.wait(WAIT_S)
    say(service)
    assert recorded.of("finished")[-1]["reason"] == "eos"
    service.close()
