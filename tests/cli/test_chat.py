"""``edgespec chat`` on a look-up target, in a pipe and on a pseudo-terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgespec.cli.chat import Conversation
from edgespec.runtime import Engine, load
from tests.cli.conftest import Run, assert_one_line_error
from tests.helpers.bundles import alphabet_table, make_lookup_bundle

pexpect = pytest.importorskip("pexpect")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_lookup_bundle(tmp_path_factory.mktemp("chat") / "bundle", chat=True)


@pytest.fixture
def engine(bundle: Path) -> Iterator[Engine]:
    with load(bundle) as engine:
        yield engine


def test_every_line_of_a_pipe_is_a_message(edgespec: Run, bundle: Path) -> None:
    outcome = edgespec("chat", bundle, "--max-new-tokens", 3, stdin=b"first\n\nsecond\n")
    assert (outcome.code, outcome.out, outcome.err) == (0, "abc\nabc\n", "")


def test_the_last_line_needs_no_end_and_exit_ends(edgespec: Run, bundle: Path) -> None:
    assert edgespec("chat", bundle, "--max-new-tokens", 2, stdin=b"only").out == "ab\n"
    assert edgespec("chat", bundle, "--max-new-tokens", 2, stdin=b"one\n/exit\ntwo\n").out == "ab\n"


def test_commands_write_on_stderr(edgespec: Run, bundle: Path) -> None:
    outcome = edgespec("chat", bundle, "--max-new-tokens", 2, stdin=b"/stats\nhi\n/stats\n/nonsense\n/help\n")
    assert outcome.out == "ab\n"
    assert "no answer yet" in outcome.err
    assert "2 tokens," in outcome.err
    assert "no command '/nonsense'" in outcome.err


def test_the_history_goes_along_until_it_is_cleared(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    conversation = Conversation(engine, "be brief", {"max_new_tokens": 3}, show_drafts=False)
    conversation.answer("one")
    conversation.answer("two")
    assert capsys.readouterr().out == "abc\nabc\n"
    assert [message["content"] for message in conversation.messages] == ["be brief", "one", "abc", "two", "abc"]
    assert conversation.stats
    assert conversation.stats.prompt_tokens == len("be brief") + len("one") + len("abc") + len("two") + 5
    conversation.clear()
    assert conversation.messages == [{"role": "system", "content": "be brief"}]


def test_a_message_that_does_not_fit_is_forgotten(edgespec: Run, engine: Engine, bundle: Path) -> None:
    from edgespec.errors import CapacityError

    conversation = Conversation(engine, None, {"max_new_tokens": 3}, show_drafts=False)
    conversation.answer("one")
    before = list(conversation.messages)
    with pytest.raises(CapacityError):
        conversation.answer("x" * 300)
    assert conversation.messages == before
    outcome = edgespec("chat", bundle, stdin=b"x" * 300 + b"\n")
    assert_one_line_error(outcome, "the cache holds 256")


def test_an_interrupted_answer_stays_as_far_as_it_was_shown(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written: list[str] = []

    def write(text: str, **_: Any) -> None:
        written.append(text)
        if len(written) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("edgespec.cli.chat.write", write)
    conversation = Conversation(engine, None, {"max_new_tokens": 9}, show_drafts=False)
    conversation.answer("one")
    monkeypatch.undo()
    assert written == ["a", "b", "c", "\n"]
    assert conversation.messages[-1] == {"role": "assistant", "content": "abc"}
    conversation.answer("two")
    assert capsys.readouterr().out == "abcdefghi\n"


def test_history_editing_and_undoing(edgespec: Run, bundle: Path) -> None:
    lines = b"one\ntwo\n/history\n/edit 1 other\n/history\n/undo\n/history\n"
    outcome = edgespec("chat", bundle, "--max-new-tokens", 2, "--system", "brief", stdin=lines)
    assert outcome.out == "ab\nab\nab\n"
    assert outcome.err == (
        "system: brief\n1: one\nassistant: ab\n2: two\nassistant: ab\nsystem: brief\n1: other\nassistant: ab\nsystem: brief\n"
    )


def test_the_drafter_can_be_changed(edgespec: Run, tmp_path: Path) -> None:
    bundle = make_lookup_bundle(tmp_path / "b", draft_table=alphabet_table(), chat=True)
    lines = b"one\n/stats\n/drafter draft 3\ntwo\n/stats\n"
    outcome = edgespec("chat", bundle, "--max-new-tokens", 9, "--drafter", "none", stdin=lines)
    assert outcome.out == "abcdefghi\nabcdefghi\n"
    assert "none, exact" in outcome.err
    assert "draft, draft length 3, exact" in outcome.err


def test_saved_and_gone_on_with(edgespec: Run, bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "talk.edgespec"
    words = ["chat", bundle, "--max-new-tokens", 2]
    outcome = edgespec(*words, "--system", "brief", stdin=f"one\n/save {file}\n".encode())
    assert "go on with --restore" in outcome.err
    outcome = edgespec(*words, "--restore", file, stdin=b"two\n/history\n")
    assert outcome.err == "system: brief\n1: one\nassistant: ab\n2: two\nassistant: ab\n"
    assert_one_line_error(edgespec(*words, "--restore", tmp_path / "nothing"), "no such file")
    assert_one_line_error(edgespec(*words, "--restore", file, "--system", "x"), "no effect with --restore")
    other = make_lookup_bundle(tmp_path / "other", draft_table=alphabet_table(), chat=True)
    assert_one_line_error(edgespec("chat", other, "--restore", file), "another bundle")


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("/drafter oracle", "no drafter 'oracle'"),
        ("/drafter ngram many", "'many' is neither auto nor a number"),
        ("/drafter", "usage: /drafter auto|none|ngram"),
        ("/edit", "usage: /edit N TEXT"),
        ("/edit 0 x", "numbered from 1"),
        ("/edit 5 x", "has 0 messages of the user"),
        ("/edit one x", "say which message"),
        ("/undo", "nothing was said yet"),
        ("/save", "usage: /save FILE"),
        ("/save /nowhere/at/all", "No such file or directory"),
    ],
)
def test_commands_that_cannot_be(edgespec: Run, bundle: Path, line: str, part: str) -> None:
    assert_one_line_error(edgespec("chat", bundle, stdin=line.encode() + b"\n"), part)


def test_stop_texts_and_a_schema(edgespec: Run, bundle: Path, tmp_path: Path) -> None:
    assert edgespec("chat", bundle, "--stop", "ef", "--stop", "zz", stdin=b"x\n").out == "abcd\n"
    pytest.importorskip("llguidance")
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object", "properties": {"x": {"enum": ["one"]}}, "required": ["x"], "additionalProperties": false}')
    assert edgespec("chat", bundle, "--json-schema", schema, stdin=b"x\n").out == '{"x": "one"}\n'
    assert edgespec("chat", bundle, "--regex", "q{3}", stdin=b"x\n").out == "qqq\n"


def test_on_a_terminal_commands_go_on_after_mistakes(bundle: Path, tmp_path: Path) -> None:
    child = pexpect.spawn(
        sys.executable, ["-m", "edgespec", "chat", str(bundle), "--max-new-tokens", "4", "--stop", "d"], encoding="utf-8", timeout=30
    )
    child.expect("> ")
    for line, answer in (
        ("/nonsense", "no command"),
        ("/drafter oracle", "no drafter 'oracle'"),
        ("hello", "abc"),
        ("/edit 1 other", "abc"),
        ("/history", "1: other"),
        ("/save " + str(tmp_path / "talk"), "saved"),
        ("/save /nowhere/at/all", "No such file"),
        ("x" * 300, "the cache holds 256"),
        ("/undo", ""),
        ("/history", "nothing was said yet"),
        ("/help", "/edit N TEXT"),
    ):
        child.sendline(line)
        child.expect_exact(answer)
        child.expect("> ")
    child.sendline("/exit")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    assert (tmp_path / "talk").is_file()


def test_a_bundle_without_template_cannot_chat(edgespec: Run, tmp_path: Path) -> None:
    assert_one_line_error(edgespec("chat", make_lookup_bundle(tmp_path / "b")), "has no chat template", "edgespec run")


def test_bytes_that_are_no_text_are_one_line(edgespec: Run, bundle: Path) -> None:
    assert_one_line_error(edgespec("chat", bundle, stdin=b"\xff\n"), "not UTF-8")


def test_on_a_terminal_ctrl_c_stops_the_answer_and_not_the_program(tmp_path: Path) -> None:
    """Through a pseudo-terminal: an alphabet that would go on for minutes is stopped, the program is not, and Ctrl-D ends it."""
    endless = make_lookup_bundle(tmp_path / "endless", chat=True, capacity=2_000_000)
    words = ["-m", "edgespec", "chat", str(endless), "--drafter", "none", "--exactness", "fast", "--max-new-tokens", "1900000"]
    child = pexpect.spawn(sys.executable, words, encoding="utf-8", timeout=30)
    child.expect("> ")
    child.sendintr()
    child.expect("/exit or Ctrl-D ends")
    child.expect("> ")
    for _ in range(2):
        child.sendline("hello")
        child.expect("abcdefg")
        child.sendintr()
        child.expect("> ")
    child.sendline("/stats")
    child.expect(r"new +(\d+) tokens")
    assert 7 <= int(child.match[1]) < 1_900_000
    child.expect("> ")
    child.sendeof()
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
