"""``edgespec run`` on a look-up target: its text is the alphabet, and what drafts do to it is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgespec.cli.run import make_prompt, read_prompt
from tests.cli.conftest import Run, assert_one_line_error
from tests.helpers.bundles import alphabet_table, make_lookup_bundle

KEYS = {
    "text", "token_ids", "finish_reason", "prompt_tokens", "new_tokens", "target_passes", "drafted", "accepted", "tokens_per_pass",
    "drafter", "draft_length", "exactness", "time_to_first_token_s", "decode_tokens_per_s", "peak_rss_bytes",
}  # fmt: skip


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The alphabet, with a draft that knows it but for what follows c, and a chat template."""
    draft = alphabet_table()
    draft[ord("c")] = ord("x")
    return make_lookup_bundle(tmp_path_factory.mktemp("run") / "bundle", draft_table=draft, chat=True)


def run_json(edgespec: Run, bundle: Path, *words: object) -> dict[str, Any]:
    outcome = edgespec("run", bundle, *words, "--json")
    assert outcome.code == 0, outcome.err
    data: dict[str, Any] = json.loads(outcome.out)
    return data


def test_json_has_every_key(edgespec: Run, bundle: Path) -> None:
    data = run_json(edgespec, bundle, "x", "--no-chat", "--max-new-tokens", 5)
    assert set(data) >= KEYS
    assert data["text"] == "yzabc"
    assert data["token_ids"] == list(b"yzabc")
    assert data["finish_reason"] == "length"
    assert (data["prompt_tokens"], data["new_tokens"]) == (1, 5)
    assert data["peak_rss_bytes"] > 2**20


def test_drafters_change_the_passes_and_not_the_tokens(edgespec: Run, bundle: Path) -> None:
    words = ["abcabc", "--no-chat", "--max-new-tokens", 40]
    plain = run_json(edgespec, bundle, *words, "--drafter", "none")
    assert (plain["drafted"], plain["accepted"], plain["tokens_per_pass"]) == (0, 0, 1.0)
    for drafter in ("ngram", "draft", "tree", "lookahead", "ngram,tree", "auto"):
        found = run_json(edgespec, bundle, *words, "--drafter", drafter, "--draft-length", 3)
        assert found["token_ids"] == plain["token_ids"]
        assert found["drafter"] == drafter
        assert found["draft_length"] == 3
        assert found["accepted"] > 0
        assert found["target_passes"] < plain["target_passes"]


def test_text_is_the_text_and_a_line_end(edgespec: Run, bundle: Path) -> None:
    outcome = edgespec("run", bundle, "x", "--no-chat", "--max-new-tokens", 5)
    assert (outcome.code, outcome.out, outcome.err) == (0, "yzabc\n", "")


def test_an_endless_text_says_what_was_dropped(edgespec: Run, bundle: Path) -> None:
    words = ("run", bundle, "x", "--no-chat", "--max-new-tokens", "100", "--context", "40", "--stats")
    ended, outcome = edgespec(*words), edgespec(*words, "--endless")
    assert len(ended.out) < 42 < len(outcome.out) == 101
    assert "tokens behind the first ones, which the target saw no longer" in outcome.err
    assert "dropped" not in ended.err


def test_the_chat_template_is_used_unless_told_otherwise(edgespec: Run, bundle: Path) -> None:
    """With it the prompt is <user> x <assistant>, and after <assistant> the table starts over with a."""
    assert edgespec("run", bundle, "x", "--max-new-tokens", 3).out == "abc\n"
    assert run_json(edgespec, bundle, "x", "--max-new-tokens", 3)["prompt_tokens"] == 3
    with_system = run_json(edgespec, bundle, "x", "--system", "be brief", "--max-new-tokens", 3)
    assert with_system["prompt_tokens"] == 3 + 1 + len("be brief")


@pytest.mark.parametrize("words", [[], ["-"]])
def test_the_prompt_may_come_from_stdin(edgespec: Run, bundle: Path, words: list[str]) -> None:
    outcome = edgespec("run", bundle, *words, "--no-chat", "--max-new-tokens", 3, stdin=b"x\n")
    assert outcome.out == "yza\n"


def test_stats_are_a_table_on_stderr(edgespec: Run, bundle: Path) -> None:
    words = ["x", "--no-chat", "--max-new-tokens", 20, "--drafter", "draft", "--draft-length", 2, "--stats"]
    outcome = edgespec("run", bundle, *words)
    assert outcome.out == "yzabcdefghijklmnopqr\n"
    assert "draft, draft length 2" in outcome.err
    assert "20 tokens," in outcome.err
    assert "drafted tokens (" in outcome.err


def test_without_a_terminal_nothing_is_coloured(edgespec: Run, bundle: Path) -> None:
    words = ["run", bundle, "x", "--no-chat", "--max-new-tokens", 9, "--drafter", "draft", "--show-drafts"]
    assert edgespec(*words).out == "yzabcdefg\n"


def test_on_a_terminal_accepted_drafts_are_coloured(edgespec: Run, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.cli.output.on_terminal", lambda: True)
    words = ["run", bundle, "a", "--no-chat", "--max-new-tokens", 5, "--drafter", "draft", "--draft-length", 1]
    # After a: b from the prefill, then c drafted and d the target's own, then e drafted and f the target's own.
    green = "b\x1b[32mc\x1b[0md\x1b[32me\x1b[0mf\n"
    assert edgespec(*words, "--show-drafts").out == green
    assert edgespec(*words).out == "bcdef\n"


def test_a_seed_repeats_a_draw(edgespec: Run, tmp_path: Path) -> None:
    import numpy as np

    bundle = make_lookup_bundle(tmp_path / "b", np.zeros((259, 259), np.float32))
    words = ["x", "--no-chat", "--max-new-tokens", 30, "--sample", "--temperature", "0.9", "--top-k", "50", "--top-p", "0.9"]
    first, again, other = (run_json(edgespec, bundle, *words, "--seed", seed)["token_ids"] for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["", "--no-chat"], "the prompt is empty"),
        (["x", "--drafter", "lookahead", "--lookahead", "4,3"], "'4,3' is not three numbers"),
        (["x", "--lookahead", "1,2,1", "--drafter", "ngram"], "lookahead: has no effect with drafter 'ngram'"),
        (["x", "--drafter", "ngram,ngram"], "ngram is named twice"),
        (["x", "--drafter", "oracle"], "no drafter 'oracle'; this bundle can run auto, none, "),
        (["x", "--draft-length", "8"], "draft_length: 8 is more than 7"),
        (["x" * 300, "--no-chat"], "the prompt has 300 tokens and the cache holds 256"),
        (["x", "--memory-budget", "1kB"], "memory budget"),
        (["x", "--memory-budget", "some"], "memory budget 'some'"),
        (["x", "--sample", "--temperature", "0"], "temperature: 0.0 is not above 0"),
        (["x", "--sample", "--top-p", "1.5"], "top_p: 1.5"),
        (["x", "--sample", "--top-k", "-1"], "top_k: -1"),
        (["x", "--sample", "--seed", "-1"], "seed: -1"),
        (["x", "--system", "s", "--no-chat"], "--system needs a chat"),
        (["x", "--json", "--show-drafts"], "--show-drafts has no effect with --json"),
        (["x", "--json", "--stats"], "--stats has no effect with --json"),
        (["x", "--min-p", "0.1"], "--min-p has no effect without --sample"),
        (["x", "--stop", ""], "stop"),
        (["x", "--regex", ""], "regex: '' is not a text"),
        (["x", "--min-new-tokens", "300"], "min_new_tokens: 300 is more than max_new_tokens"),
        (["x", "--repetition-penalty", "-1"], "repetition_penalty: -1.0"),
        (["x", "--no-repeat-ngram", "-1"], "no_repeat_ngram_size: -1"),
        (["x", "--ban-token", "999"], "banned_tokens: 999 is not a token id"),
        (["x", "--logit-bias", "5"], "'5' is not a token id and a number"),
        (["x", "--logit-bias", "5=nan"], "logit_bias"),
        (["x", "--json-schema", "/nowhere.json"], "/nowhere.json: No such file"),
        (["\udcff", "--no-chat"], "the prompt is not UTF-8"),
    ],
)
def test_bad_input_is_one_line(edgespec: Run, bundle: Path, words: list[str], part: str) -> None:
    before = sorted(bundle.iterdir())
    assert_one_line_error(edgespec("run", bundle, *words), part)
    assert sorted(bundle.iterdir()) == before


@pytest.mark.parametrize(("stdin", "part"), [(b"", "the prompt is empty"), (b"\n", "the prompt is empty"), (b"a\xff", "not UTF-8: byte 1")])
def test_bad_stdin_is_one_line(edgespec: Run, bundle: Path, stdin: bytes, part: str) -> None:
    assert_one_line_error(edgespec("run", bundle, "-", stdin=stdin), part)


def test_a_chat_without_template_is_one_line(edgespec: Run, tmp_path: Path) -> None:
    bundle = make_lookup_bundle(tmp_path / "plain")
    assert_one_line_error(edgespec("run", bundle, "x", "--chat"), "has no chat template")
    assert_one_line_error(edgespec("run", bundle, "x", "--system", "s"), "has no chat template")
    assert_one_line_error(edgespec("run", bundle, "x", "--drafter", "draft"), "needs a draft model, which this bundle lacks")


def test_a_damaged_bundle_is_one_line(edgespec: Run, tmp_path: Path) -> None:
    bundle = make_lookup_bundle(tmp_path / "b")
    graph = bundle / "target.onnx"
    data = graph.read_bytes()
    graph.write_bytes(data[:-10])
    assert_one_line_error(edgespec("run", bundle, "x"), "target.onnx: has")
    graph.write_bytes(b"\xff" * len(data))
    assert_one_line_error(edgespec("run", bundle, "x"), "target.onnx")
    (bundle / "edgespec.json").write_text('{"format_version": 2}')
    assert_one_line_error(edgespec("run", bundle, "x"), "upgrade edgespec")


def test_rules_that_hold_without_sampling(edgespec: Run, bundle: Path) -> None:
    words = ["a", "--no-chat", "--drafter", "draft", "--draft-length", 3, "--max-new-tokens", 6]
    assert run_json(edgespec, bundle, *words, "--stop", "ef")["text"] == "bcd"
    assert run_json(edgespec, bundle, *words, "--stop", "xx", "--stop", "de")["finish_reason"] == "stop"
    assert "c" not in run_json(edgespec, bundle, *words, "--ban-token", ord("c"))["text"]
    assert run_json(edgespec, bundle, *words, "--logit-bias", f"{ord('q')}=100")["text"] == "qqqqqq"


def test_a_prompt_stays_as_it_was_typed() -> None:
    assert read_prompt(" two  spaces\n") == " two  spaces\n"
    assert make_prompt("hi", None, None) == "hi"
    assert make_prompt("hi", "s", True) == [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]


def test_a_corpus_for_the_ngram_drafter(edgespec: Run, bundle: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("abcdefghijklmnopqrstuvwxyz", encoding="utf-8")
    words = ["ab", "--no-chat", "--max-new-tokens", 12, "--drafter", "ngram", "--draft-length", 3]
    alone, helped = run_json(edgespec, bundle, *words), run_json(edgespec, bundle, *words, "--ngram-corpus", corpus)
    assert helped["text"] == alone["text"]
    assert helped["accepted"] > alone["accepted"]
    assert_one_line_error(edgespec("run", bundle, *words, "--ngram-corpus", tmp_path / "none"), "n-gram corpus", "cannot be read")
