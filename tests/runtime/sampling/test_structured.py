"""Structured output on a random decoder: it would write anything, so whatever is valid is the grammar's doing."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec.errors import UsageError
from edgespec.runtime import Engine, drafters, load
from edgespec.tree import DraftTree
from tests.helpers.bundles import make_lookup_bundle

pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6, "pattern": "^[a-z]*$"},
        "kind": {"enum": ["river", "mountain"]},
        "height": {"type": "integer", "minimum": 0, "maximum": 9999},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "kind", "height", "tags"],
    "additionalProperties": False,
}
DRAFTERS: list[dict[str, Any]] = [
    {"drafter": "none"},
    {"drafter": "ngram", "draft_length": 4},
    {"drafter": "draft", "draft_length": 1},
    {"drafter": "draft", "draft_length": 5},
    {"drafter": "tree", "draft_length": 6},
    {"drafter": "lookahead", "draft_length": 7},
    {"drafter": "auto"},
]


def check(text: str) -> None:
    data = json.loads(text)
    assert list(data) == ["name", "kind", "height", "tags"]
    assert re.fullmatch("[a-z]{0,6}", data["name"])
    assert data["kind"] in ("river", "mountain")
    assert 0 <= data["height"] <= 9999
    assert len(data["tags"]) <= 3
    assert set(data["tags"]) <= {"a", "b"}


@pytest.mark.parametrize("options", DRAFTERS, ids=str)
def test_every_drafter_writes_valid_json_and_plain_decodings(attention: Engine, options: dict[str, Any]) -> None:
    for seed in range(15):
        sampling = {"json_schema": SCHEMA, "do_sample": True, "temperature": 1.5, "seed": seed}
        plain = attention.generate("x", drafter="none", **sampling)
        found = attention.generate("x", **options, **sampling)
        assert found.finish_reason == "eos"
        check(found.text)
        assert found.token_ids == plain.token_ids
        stats = found.stats
        assert stats.new_tokens == stats.accepted + stats.own_tokens + stats.forced
        assert 1 + stats.target_passes - stats.own_tokens in (0, 1)
        assert stats.forced > 40, "names of properties and their quotes are known beforehand"
        assert stats.target_passes < 30


@pytest.mark.slow
@pytest.mark.parametrize("options", DRAFTERS, ids=str)
@pytest.mark.parametrize("acceptance", ["match", "ratio"])
def test_a_hundred_seeds(attention: Engine, options: dict[str, Any], acceptance: str) -> None:
    for seed in range(100):
        sampling = {"json_schema": SCHEMA, "do_sample": True, "temperature": 1.5, "seed": seed, "acceptance": acceptance}
        found = attention.generate("x", **options, **sampling)
        assert found.finish_reason == "eos"
        check(found.text)


def test_drafts_that_draw_and_greedy_drafts(attention: Engine) -> None:
    for seed in range(10):
        found = attention.generate(
            "x", drafter="draft", draft_length=4, json_schema=SCHEMA, do_sample=True, temperature=1.5, acceptance="ratio", seed=seed
        )
        check(found.text)
    plain = attention.generate("x", drafter="none", json_schema=SCHEMA)
    check(plain.text)
    for options in DRAFTERS:
        assert attention.generate("x", json_schema=SCHEMA, **options).token_ids == plain.token_ids


def test_a_draft_that_ends_too_early_is_taken_back(attention: Engine) -> None:
    """The parser has then read the end of a text that goes on."""
    from edgespec.runtime.options import GenerationOptions
    from edgespec.runtime.sampling.processors import Text

    regex = GenerationOptions(regex="(ab){1,3}c?")
    for ahead in (b"ab", b"abc", b"ababab", b"abababc"):
        grammar, fresh = (attention._grammars.make(regex, 1) for _ in range(2))
        for text in (Text([0], [*ahead, 256]), Text([0], [*b"ab"])):
            found, expected = np.zeros(259, np.float32), np.zeros(259, np.float32)
            grammar(found, text)
        fresh(expected, Text([0], [*b"ab"]))
        np.testing.assert_array_equal(found, expected)
        assert set(np.flatnonzero(np.isfinite(found))) == {ord("a"), ord("c"), 256}


def test_branches_of_a_tree_fork_the_grammar(attention: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = attention.generate("x", drafter="none", regex="[a-z]{20}[0-9]{10}")
    assert re.fullmatch("[a-z]{20}[0-9]{10}", plain.text)

    class Branches(drafters.Drafter):
        name = "branches"
        passes = 0
        run_seconds = 0.0
        made_first_step = False

        def propose(self, context: Sequence[int], max_tokens: int) -> DraftTree:
            position = len(context) - plain.stats.prompt_tokens
            right = plain.token_ids[position : position + 3]
            if len(right) < 3 or max_tokens < 6:
                return DraftTree()
            return DraftTree((ord("!"), right[0], ord("?"), *right[1:]), (-1, -1, 1, 1, 3))

    monkeypatch.setattr(drafters, "_KINDS", {**drafters._KINDS, "branches": drafters.Kind(lambda _: Branches())})
    found = attention.generate("x", drafter="branches", draft_length=7, regex="[a-z]{20}[0-9]{10}", exactness="fast")
    assert found.token_ids == plain.token_ids
    assert found.stats.accepted > 10


def test_forced_tokens_come_without_a_pass(attention: Engine) -> None:
    result = attention.generate("x", drafter="none", regex="the whole text is known")
    assert (result.text, result.finish_reason) == ("the whole text is known", "eos")
    assert result.stats.target_passes == 0
    assert result.stats.forced == len("the whole text is known")
    model = attention._model("target")
    long = "x" * 180
    result = attention.generate("y", drafter="none", regex=f"{long}[ab]")
    assert result.text[:-1] == long
    assert result.stats.target_passes == 1, "what the verification's width cannot hold goes in chunks before"
    assert model.length == result.stats.prompt_tokens + 180


@pytest.mark.parametrize("limit", [1, 5, 40])
def test_limits_hold_within_forced_tokens(attention: Engine, limit: int) -> None:
    result = attention.generate("x", drafter="draft", draft_length=3, regex="(abcdefgh){9}[0-9]", max_new_tokens=limit)
    assert (result.text, result.finish_reason) == (("abcdefgh" * 9)[:limit], "length")
    assert attention.generate("x", max_new_tokens=3).stats.new_tokens == 3
    result = attention.generate("x", regex="(abcdefgh){9}[0-9]", stop="dea" if limit == 1 else "def", max_new_tokens=30)
    assert result.text == ("abcdefgh" * 4)[:30] if limit == 1 else "abc"
    assert result.stats.new_tokens == len(result.token_ids)


def test_a_full_cache_ends_a_grammar_too(tmp_path: Path) -> None:
    with load(make_lookup_bundle(tmp_path / "b", capacity=40, max_width=4)) as engine:
        result = engine.generate("abcdef", regex="z{60}", max_new_tokens=100)
        assert (result.text, result.finish_reason) == ("z" * 35, "capacity")


def test_a_lark_grammar(attention: Engine) -> None:
    grammar = 'start: "[" item ("," item)* "]"\nitem: /[0-9]{2}/'
    result = attention.generate("x", grammar=grammar, do_sample=True, seed=1, max_new_tokens=200)
    assert re.fullmatch(r"\[[0-9]{2}(,[0-9]{2})*\]", result.text) or result.finish_reason == "length"


@pytest.mark.parametrize("drafter", ["draft", "tree"])
@pytest.mark.parametrize("sampling", [{}, {"do_sample": True, "seed": 3}, {"do_sample": True, "acceptance": "ratio"}])
def test_a_draft_may_suppose_what_leads_nowhere(attention: Engine, drafter: str, sampling: dict[str, Any]) -> None:
    """Behind "no" all that the grammar allows is banned: the target never goes there, and a draft that does ends there.

    The logits of this decoder lie up to some hundreds apart, so what shall be certain is a thousand above the others.
    """
    never = {"regex": "[ab](yes|no[!?])", "banned_tokens": [*b"!?"], "max_new_tokens": 9, **sampling}
    towards = {"logit_bias": {ord("a"): 1000.0, ord("y"): 1000.0}}
    plain = attention.generate("x", drafter="none", **never, **towards)
    assert plain.text == "ayes"
    choose = attention._drafting.proposer

    def misled(names: Any, target: Any, sampler: Any, *others: Any) -> Any:
        """The draft says "no" where the target says "yes"."""

        def flipped(row: Any) -> Any:
            row = row.copy()
            row[ord("n")] = row.max() + 2000
            return row

        draft, several = sampler.draft, sampler.draft_several
        sampler.draft = lambda row, text: draft(flipped(row), text)
        sampler.draft_several = lambda rows, text, count: several([flipped(row) for row in rows], text, count)
        return choose(names, target, sampler, *others)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(attention._drafting, "proposer", misled)
        found = attention.generate("x", drafter=drafter, draft_length=3, **never, **towards)
    assert found.text == "ayes"
    assert found.stats.drafted > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"json_schema": {"type": "integer", "minimum": 5, "maximum": 1}}, r"json_schema: Unsatisfiable schema: minimum \(5\)"),
        ({"json_schema": "{"}, "json_schema: not a JSON schema"),
        ({"json_schema": "[1]"}, "json_schema: not a JSON schema: a schema is an object"),
        ({"json_schema": {"allOf": [{"type": "string"}, {"type": "integer"}]}}, "json_schema: Unsatisfiable schema: incompatible types"),
        ({"json_schema": {"type": "nonsense"}}, "json_schema: Invalid type: nonsense"),
        ({"regex": "(a"}, "regex: .*unclosed group"),
        ({"grammar": "start: foo"}, "grammar: .*unknown name"),
    ],
)
def test_refused_before_anything_runs(attention: Engine, options: dict[str, Any], message: str) -> None:
    passes = attention._model("target").passes
    with pytest.raises(UsageError, match=message) as caught:
        attention.stream("x", **options)
    assert "\n" not in str(caught.value)
    assert attention._model("target").passes == passes


def test_without_llguidance(attention: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UsageError, match=r"pip install 'edgespec\[structured\]'"):
        attention.generate("x", regex="a")
