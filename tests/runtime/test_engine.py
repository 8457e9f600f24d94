"""The engine: prompts, pieces, reuse of the cache, early closing, and what it refuses."""

from __future__ import annotations

import dataclasses
import gc
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import edgespec
from edgespec.errors import BundleError, CapacityError, EdgespecError, RuntimeFailure, UsageError
from edgespec.runtime import Engine, Stats, drafters, load, verify
from edgespec.runtime.options import GenerationOptions
from edgespec.runtime.tuning.cost import Costs, RunningCosts
from edgespec.tree import DraftTree
from tests.helpers.bundles import ASSISTANT, USER, alphabet_table, logits_of_table, make_lookup_bundle


def test_load_is_at_the_top(attention_bundle: Path) -> None:
    with edgespec.load(attention_bundle) as engine:
        assert engine.drafters[:2] == ("auto", "none")
        assert {"ngram", "draft", "tree"} <= set(engine.drafters)


def test_prompt_forms(attention: Engine) -> None:
    chat = [USER, *b"hi", ASSISTANT]
    assert attention.encode("hi") == chat
    assert attention.encode("hi", chat=True) == chat
    assert attention.encode([{"role": "user", "content": "hi"}]) == chat
    assert attention.encode("hi", chat=False) == [*b"hi"]
    assert attention.encode([1, np.int64(2)]) == [1, 2]
    assert attention.encode(np.array([1, 2])) == [1, 2]  # type: ignore[arg-type]


def test_prefix_ids_start_a_plain_prompt(tmp_path: Path) -> None:
    with load(make_lookup_bundle(tmp_path / "b", prefix_ids=(7,))) as engine:
        assert engine.encode("hi") == [7, *b"hi"]
        assert engine.encode([104]) == [104]


def test_pieces_together_are_the_generation(attention: Engine) -> None:
    for drafter in ("draft", "none"):
        result = attention.generate("hello", drafter=drafter, draft_length=3, max_new_tokens=40)
        stats = Stats()
        pieces = list(attention.stream("hello", stats=stats, drafter=drafter, draft_length=3, max_new_tokens=40))
        assert "".join(piece.text for piece in pieces) == result.text
        assert tuple(token for piece in pieces for token in piece.token_ids) == result.token_ids
        assert sum(flag for piece in pieces for flag in piece.drafted) == stats.accepted == result.stats.accepted
        assert [piece.finish_reason for piece in pieces if piece.finish_reason] == [result.finish_reason]
        assert pieces[-1].finish_reason == result.finish_reason


def test_a_character_of_several_tokens_comes_whole(tmp_path: Path) -> None:
    table = alphabet_table()
    text = "xé€😀y"
    for here, there in zip(text.encode(), text.encode()[1:], strict=False):
        table[here] = there
    with load(make_lookup_bundle(tmp_path / "b", table, table)) as engine:
        pieces = list(engine.stream("x", max_new_tokens=10, drafter="draft", draft_length=4))
        assert [piece.text for piece in pieces] == ["é", "€", "😀", "y"]
        assert engine.generate("x", max_new_tokens=7, drafter="draft", draft_length=4).text == "é€\ufffd"


def test_stop_texts(tmp_path: Path) -> None:
    with load(make_lookup_bundle(tmp_path / "b", draft_table=alphabet_table())) as engine:
        for drafter, length in (("draft", 3), ("draft", 4), ("draft", 5), ("none", 1)):
            result = engine.generate("a", drafter=drafter, draft_length=length, stop=["zzz", "fgh"])
            assert (result.text, result.finish_reason) == ("bcde", "stop")
            assert bytes(result.token_ids) == b"bcdefgh"
            assert result.stats.new_tokens == 7
            assert result.stats.accepted <= 6
            result = engine.generate("a", drafter=drafter, draft_length=length, stop="efx", max_new_tokens=5)
            assert (result.text, result.finish_reason) == ("bcdef", "length"), "what was held back is shown in the end"
        again = engine.generate("a", drafter="draft", draft_length=5, max_new_tokens=9)
        assert again.text == "bcdefghij"


def test_options_made_by_hand_are_those_made_by_keywords() -> None:
    given = {"stop": "END", "banned_tokens": [1, 2], "lookahead": [4, 3, 2]}
    made = GenerationOptions(**given)  # type: ignore[arg-type]
    assert made == GenerationOptions.of(**given) == GenerationOptions.of(made)
    assert (made.stop, made.banned_tokens, made.lookahead) == (("END",), (1, 2), (4, 3, 2))


def test_what_prompts_share_is_computed_once(attention: Engine, attention_bundle: Path) -> None:
    prompt = list(range(60))
    first = attention.generate(prompt, max_new_tokens=20, ignore_eos=True)
    assert first.stats.reused_tokens == 0
    longer = [*prompt, *first.token_ids, 5, 6]
    second = attention.generate(longer, max_new_tokens=20, ignore_eos=True)
    other = attention.generate([*prompt[:40], 7], max_new_tokens=20, ignore_eos=True)
    assert (second.stats.reused_tokens, other.stats.reused_tokens) == (79, 40)
    with load(attention_bundle, threads=1) as engine:
        assert engine.generate([*prompt[:40], 7], max_new_tokens=20, ignore_eos=True).token_ids == other.token_ids
    with load(attention_bundle, threads=1) as engine:
        assert engine.generate(longer, max_new_tokens=20, ignore_eos=True).token_ids == second.token_ids


def test_rows_of_a_fast_generation_do_not_serve_an_exact_one(attention: Engine) -> None:
    prompt = list(range(60))
    assert attention.exactness.grade == "exact"
    attention.generate(prompt, exactness="fast", max_new_tokens=5)
    assert attention.generate(prompt, max_new_tokens=5).stats.reused_tokens == 0
    assert attention.generate(prompt, exactness="fast", max_new_tokens=5).stats.reused_tokens == 59


@pytest.mark.parametrize("drafter", ["draft", "ngram", "none"])
def test_closing_early_leaves_the_engine_fit(attention: Engine, drafter: str) -> None:
    expected = attention.generate("hello there", drafter="none", max_new_tokens=30).token_ids
    for stop_after in (1, 2, 5):
        stream = attention.stream("hello there", drafter=drafter, draft_length=4, max_new_tokens=30)
        for _ in range(stop_after):
            next(stream)
        stream.close()  # type: ignore[attr-defined]
        assert attention.generate("hello there", drafter=drafter, draft_length=4, max_new_tokens=30).token_ids == expected


def test_one_generation_at_a_time(attention: Engine) -> None:
    stream = attention.stream("hello", exactness="fast", drafter="none")
    next(stream)
    with pytest.raises(UsageError, match="generating already"):
        attention.generate("other")
    with pytest.raises(UsageError, match="generating already"):
        _ = attention.exactness, attention.cost_curve
    del stream
    gc.collect()
    assert attention.generate("other", max_new_tokens=3).stats.new_tokens == 3


def test_a_tree_drafter_gives_the_plain_text(attention: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = attention.generate("hello there", drafter="none", max_new_tokens=40, ignore_eos=True)

    class Branches(drafters.Drafter):
        """Knows the text; proposes a wrong first branch and the right second one, or the other way round."""

        name = "branches"
        passes = 0
        run_seconds = 0.0
        made_first_step = False

        def __init__(self, right_first: bool) -> None:
            self.right_first = right_first

        def propose(self, context: Sequence[int], max_tokens: int) -> DraftTree:
            position = len(context) - plain.stats.prompt_tokens
            right = plain.token_ids[position : position + 3]
            if len(right) < 3 or max_tokens < 5:
                return DraftTree()
            wrong = (1, 2)
            if self.right_first:
                return DraftTree((*right, *wrong), (-1, 0, 1, -1, 3))
            return DraftTree((*wrong, *right), (-1, 0, -1, 2, 3))

    kinds = dict(drafters._KINDS)
    monkeypatch.setattr(drafters, "_KINDS", kinds)
    for right_first in (True, False):
        kinds["branches"] = drafters.Kind(lambda _, first=right_first: Branches(first))  # type: ignore[misc]
        for exactness in ("exact", "fast"):
            found = attention.generate(
                "hello there", drafter="branches", draft_length=7, max_new_tokens=40, ignore_eos=True, exactness=exactness
            )
            assert found.token_ids == plain.token_ids
            # Under "exact" a second branch commits nothing: its rows would not be bit for bit those of plain decoding.
            # It says what is drafted next.
            assert found.stats.accepted > 20
            assert (found.stats.from_branches > 20) == (not right_first and exactness == "fast")
            assert (found.stats.seeded > 10) == (not right_first and exactness == "exact")


def test_padding_rows_carry_guesses(attention: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    widths = dataclasses.replace(attention.exactness, widths=(4, 8, 32))
    monkeypatch.setitem(attention.__dict__, "exactness", widths)
    prompt = [1, 2, 3, 4, 5, 6] * 5
    plain = attention.generate(prompt, drafter="none", max_new_tokens=40, ignore_eos=True)
    assert plain.stats.drafted == 0
    found = attention.generate(prompt, drafter="draft", draft_length=1, max_new_tokens=40, ignore_eos=True)
    assert found.token_ids == plain.token_ids
    assert max(found.stats.rounds_by_draft_length) == 3, "a pass of two is padded to four, and guesses fill it"


def test_verify_finds_a_drafter_that_changes_the_text(attention: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    report = verify(attention, prompts=["hello", [1, 2, 3]], max_new_tokens=20)
    assert report.ok
    assert {(case.drafter, case.draft_length) for case in report.cases} == {(d, k) for d in attention.drafters[2:] for k in (1, 3, 7)}
    generate = attention.generate

    def wrong(prompt: str, **options: object):  # type: ignore[no-untyped-def]
        result = generate(prompt, **options)
        return dataclasses.replace(result, token_ids=(*result.token_ids[:4], 0)) if options["drafter"] == "draft" else result

    monkeypatch.setattr(attention, "generate", wrong)
    report = verify(attention, prompts=["hello"], max_new_tokens=20)
    assert not report.ok
    assert {case.drafter for case in report.cases if case.first_difference == 4} == {"draft"}


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("", {}, "prompt is empty"),
        ([], {}, "prompt is empty"),
        ([259], {}, "token id 259: expected whole numbers from 0 to 258"),
        ([-1], {}, "token id -1"),
        ([1.5], {}, "token id 1.5"),
        (3, {}, "expected a text, messages or token ids, found int"),
        ([{"content": "hi"}], {}, r"messages\[0\]: expected a role"),
        ([{"role": "king", "content": "hi"}], {}, r"messages\[0\]: no role 'king'"),
        ("hi", {"banned_tokens": [259]}, "banned_tokens: 259 is not a token id from 0 to 258"),
        ("hi", {"min_new_tokens": -1}, "min_new_tokens: -1"),
        ("hi", {"drafter": "medusa"}, "drafter 'medusa' needs Medusa heads, which this bundle lacks; it can run auto, none, .*draft"),
        ("hi", {"drafter": "draft,tree"}, "draft and tree run the same model, draft, which has one cache"),
        ("hi", {"drafter": "ngram,eagle"}, "drafter 'eagle' needs an EAGLE head"),
        ("hi", {"drafter": "hydra"}, "no drafter 'hydra'"),
        ("hi", {"drafter": "ngram", "draft_length": 8}, "draft_length: 8 is more than 7"),
        ("hi", {"draft_length": 0}, "draft_length: 0"),
        ("hi", {"draft_length": "many"}, "draft_length: 'many'"),
        ("hi", {"max_new_tokens": 0}, "max_new_tokens: 0"),
        ("hi", {"max_new_tokens": True}, "max_new_tokens: True"),
        ("hi", {"temperature": 0}, "temperature: 0"),
        ("hi", {"top_p": 1.5}, "top_p: 1.5"),
        ("hi", {"top_k": -1}, "top_k: -1"),
        ("hi", {"seed": -1}, "seed: -1"),
        ("hi", {"exactness": "roughly"}, "exactness: 'roughly'"),
        ("hi", {"stop": [""]}, "stop"),
        ("hi", {"stop": 3}, "stop"),
        ("hi", {"do_sample": "false"}, "do_sample: 'false' is not true or false"),
        ("hi", {"ignore_eos": 1}, "ignore_eos: 1"),
        ("hi", {"banned_tokens": 7}, "banned_tokens: expected token ids"),
        ("hi", {"max_tokens": 3}, "unknown option 'max_tokens'; there are chat"),
    ],
)
def test_refused_at_the_call(attention: Engine, prompt: object, options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        attention.stream(prompt, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_a_drafter_without_its_model(tmp_path: Path) -> None:
    with load(make_lookup_bundle(tmp_path / "b")) as engine:
        assert not {"draft", "tree"} & set(engine.drafters)
        with pytest.raises(UsageError, match="needs a draft model, which this bundle lacks"):
            engine.generate("hi", drafter="draft")
        with pytest.raises(UsageError, match="no chat template"):
            engine.generate("hi", chat=True)


def test_logits_that_are_not_numbers(tmp_path: Path) -> None:
    logits = logits_of_table(alphabet_table())
    logits[ord("e")] = np.nan
    bundle = make_lookup_bundle(tmp_path / "b", logits, alphabet_table())
    for drafter in ("none", "draft"):
        with load(bundle) as engine, pytest.raises(RuntimeFailure, match="not finite"):
            engine.generate("a", drafter=drafter, draft_length=3, exactness="fast")


def test_the_heads_padding_is_never_chosen(tmp_path: Path) -> None:
    logits = logits_of_table(alphabet_table())
    logits[:, 250:] = 50.0  # the tokenizer below says that ids end at 250
    bundle = make_lookup_bundle(tmp_path / "b", logits, alphabet_table(), eos_ids=())
    manifest = json.loads((bundle / "edgespec.json").read_text())
    manifest["tokenizer"]["vocab_size"] = 250
    (bundle / "edgespec.json").write_text(json.dumps(manifest))
    with load(bundle) as engine:
        for options in ({"drafter": "draft"}, {"drafter": "none"}, {"do_sample": True, "seed": 1, "temperature": 0.1}):
            assert engine.generate("a", max_new_tokens=9, **options).text == "bcdefghij"


def test_loading_what_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no such bundle folder"):
        load(tmp_path / "nothing")
    bundle = make_lookup_bundle(tmp_path / "b", chat=True)
    for name, replace, error in (
        ("target.onnx", lambda data: data[:-100], BundleError),  # shorter than the manifest says
        ("target.onnx", lambda data: b"\xff" * len(data), RuntimeFailure),
        ("tokenizer.json", lambda data: b"x" * len(data), BundleError),
        ("chat_template.jinja", lambda data: b"{% if" + b" " * (len(data) - 5), BundleError),
    ):
        file = bundle / name
        data = file.read_bytes()
        file.write_bytes(replace(data))  # type: ignore[no-untyped-call]
        with pytest.raises(error, match=name) as caught:
            load(bundle)
        assert "\n" not in str(caught.value)
        file.write_bytes(data)
    load(bundle).close()


def test_arguments_of_load(attention_bundle: Path) -> None:
    for arguments, message in (
        ({"threads": 0}, "threads: 0"),
        ({"providers": ["TpuExecutionProvider"]}, "TpuExecutionProvider is not installed .*cpu"),
        ({"memory_budget": "plenty"}, "memory budget 'plenty'"),
        ({"memory_budget": -5}, "memory budget -5"),
    ):
        with pytest.raises(UsageError, match=message):
            load(attention_bundle, **arguments)  # type: ignore[arg-type]
    engine = load(attention_bundle)
    engine.close()
    with pytest.raises(UsageError, match="closed"):
        engine.generate("hi")


def test_errors_are_of_one_family() -> None:
    assert all(issubclass(error, EdgespecError) for error in (BundleError, CapacityError, RuntimeFailure, UsageError))


def test_engines_come_and_go_without_growing(tmp_path: Path) -> None:
    bundle = make_lookup_bundle(tmp_path / "b", draft_table=alphabet_table(), capacity=4096)

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    def once() -> None:
        with load(bundle, threads=1) as engine:
            engine.generate("a", drafter="draft", draft_length=3, max_new_tokens=50)

    if not Path("/proc/self/statm").exists():
        pytest.skip("no /proc to read the resident memory from")
    for _ in range(10):
        once()
    before = resident()
    for _ in range(50):
        once()
    gc.collect()
    assert resident() - before < 8 * 2**20, "an engine's caches and sessions are a few hundred kilobytes each at least"


def test_a_drafter_that_did_not_pay_is_still_off_in_the_next_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(make_lookup_bundle(tmp_path / "b", draft_table=[ord("!")] * 259)) as engine:
        monkeypatch.setitem(engine._drafting.__dict__, "costs", Costs({1: 1.0, 8: 1.5}, {"draft": 0.3}, True))
        for saw in ("saw_pass", "saw_draft"):  # so that nothing depends on how fast this machine is now
            monkeypatch.setattr(RunningCosts, saw, lambda *_arguments: None)
        first = engine.generate("a", drafter="draft", max_new_tokens=10)
        second = engine.generate("a", drafter="draft", max_new_tokens=10)
        assert first.stats.drafted >= 4, "it gets its chance"
        assert second.stats.drafted == 0
        assert "no draft length gains" in str(second.stats.speculation_off)


@pytest.mark.parametrize("drafter", ["auto", "draft", "ngram,draft"])
def test_automatic_lengths_and_early_stops_leave_the_text_as_it_is(
    attention: Engine, monkeypatch: pytest.MonkeyPatch, drafter: str
) -> None:
    """Costs under which the draft pays, so that it is asked, and stops where it is not sure."""
    monkeypatch.setitem(attention._drafting.__dict__, "costs", Costs({1: 1.0, 8: 1.5}, {"draft": 0.1}, True))
    monkeypatch.setattr(RunningCosts, "saw_pass", lambda *_: None)
    monkeypatch.setattr(RunningCosts, "saw_draft", lambda *_: None)
    plain = attention.generate("hello there", drafter="none", max_new_tokens=120, ignore_eos=True)
    found = attention.generate("hello there", drafter=drafter, max_new_tokens=120, ignore_eos=True)
    assert found.token_ids == plain.token_ids
    assert found.stats.accepted_by_drafter["draft"].total() > 10
    assert len(found.stats.rounds_by_draft_length) > 2


@pytest.mark.parametrize("drafter", ["draft", "tree"])
def test_a_draft_that_sees_the_end_of_the_text_only(attention_bundle: Path, drafter: str) -> None:
    """Its cache is an eighth of the target's and fills several times; the text is the same."""
    with load(attention_bundle, threads=1, draft_window=32) as engine:
        plain = engine.generate([*range(40)], drafter="none", max_new_tokens=150, ignore_eos=True)
        found = engine.generate([*range(40)], drafter=drafter, draft_length=3, max_new_tokens=150, ignore_eos=True)
        assert found.token_ids == plain.token_ids
        assert engine._models.get("draft").capacity == 32
        assert found.stats.drafted > 200


def test_draft_windows_that_cannot_be(attention_bundle: Path, tmp_path: Path) -> None:
    for wrong in (0, 15, True, "32"):
        with pytest.raises(UsageError, match=r"draft_window: .* is not a number of tokens from 16"):
            load(attention_bundle, draft_window=wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="draft_window: 64 is for a draft model"):
        load(make_lookup_bundle(tmp_path / "b"), draft_window=64)


def test_a_conversation_learns_for_itself(attention: Engine) -> None:
    first, second = attention.chat(), attention.chat()
    for chat in (first, second, first):
        chat.send("hello", max_new_tokens=8, drafter="draft").result()
    attention.generate("hello", max_new_tokens=8, drafter="draft")
    policies = [*attention._drafting.chat_policies.values(), attention._drafting.policies]
    assert len({id(policy) for found in policies for policy in found.values()}) == 3
    del first, second, chat
    gc.collect()
    assert not attention._drafting.chat_policies


def test_what_happens_is_logged_and_nothing_is_printed(
    attention_bundle: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level("DEBUG", logger="edgespec"), load(attention_bundle, threads=1) as engine:
        engine.generate("hi", max_new_tokens=3)
    messages = [record.getMessage() for record in caplog.records]
    for part in ("256 tokens of context, 1 threads", "self-test of this machine: exact", "milliseconds of a pass", "generation: Stats("):
        assert any(part in message for message in messages), part
    assert capsys.readouterr() == ("", "")
