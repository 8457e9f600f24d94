"""Rules of sampling through the engine: with them on, every drafter still writes the text of plain decoding."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec.runtime import Engine, load
from tests.helpers import tables
from tests.helpers.bundles import EOS, VOCAB, make_lookup_bundle

A = ord("a")
RULES: list[dict[str, Any]] = [
    {"repetition_penalty": 1.4},
    {"presence_penalty": 1.5, "frequency_penalty": 0.3},
    {"no_repeat_ngram_size": 2},
    {"logit_bias": {A: 4.0, 200: -5.0}},
    {"banned_tokens": tuple(range(0, 250, 3))},
    {"forced_tokens": (65, 66, 67, 68, 69)},
    {"min_new_tokens": 30},
]
WARM = 5.0  # the decoder is very sure of itself: below this it has no choice
CUTS: list[dict[str, Any]] = [
    {},
    {"top_k": 20},
    {"top_p": 0.7},
    {"min_p": 0.05},
    {"typical_p": 0.8},
    {"temperature": 0.5},
    {"temperature": 2 * WARM, "top_k": 40, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.95},
]
DRAFTERS: tuple[tuple[str, int | str], ...] = (
    ("draft", 1),
    ("draft", 5),
    ("ngram", 4),
    ("tree", 6),
    ("lookahead", 7),
    ("auto", "auto"),
)


def same_with_every_drafter(engine: Engine, options: dict[str, Any]) -> int:
    """Check that all texts are equal; the number of accepted drafts."""
    accepted = 0
    for prompt in ([1, 2, 3, 4] * 4, list(b"hello there")):
        plain = engine.generate(prompt, drafter="none", max_new_tokens=40, **options)
        for drafter, length in DRAFTERS:
            found = engine.generate(prompt, drafter=drafter, draft_length=length, max_new_tokens=40, **options)
            assert (found.token_ids, found.finish_reason) == (plain.token_ids, plain.finish_reason), (drafter, length)
            accepted += found.stats.accepted
    return accepted


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_greedy_and_seeded_text_under_each_rule(attention: Engine, rule: dict[str, Any]) -> None:
    accepted = same_with_every_drafter(attention, rule)
    accepted += same_with_every_drafter(attention, {**rule, "do_sample": True, "temperature": WARM, "seed": 3})
    assert accepted > 10, "without accepted drafts this shows nothing"


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_seeded_text_under_each_cut(attention: Engine, cut: dict[str, Any]) -> None:
    for seed in (1, 2):
        same_with_every_drafter(attention, {"temperature": WARM, **cut, "do_sample": True, "seed": seed})


def test_all_rules_at_once(attention: Engine) -> None:
    rules = {name: value for rule in RULES for name, value in rule.items() if name != "forced_tokens"}
    same_with_every_drafter(attention, rules)
    same_with_every_drafter(attention, {**rules, **CUTS[-1], "do_sample": True, "seed": 5})


def test_rules_are_kept(attention: Engine) -> None:
    options: dict[str, Any] = {"drafter": "draft", "draft_length": 4, "max_new_tokens": 60, "ignore_eos": True}
    text = attention.generate([1, 2], no_repeat_ngram_size=2, **options).token_ids
    pairs = Counter(zip((2, *text), text, strict=False))
    assert max(pairs.values()) == 1
    assert attention.generate([1, 2], forced_tokens=(65, 66, 67), **options).text.startswith("ABC")
    first = attention.generate([1, 2], **options).token_ids[0]
    assert first not in attention.generate([1, 2], banned_tokens=[first], **options).token_ids
    assert set(attention.generate([1, 2], logit_bias={70: 1000.0}, **options).token_ids) == {70}


def test_no_end_before_the_minimum(tmp_path: Path) -> None:
    logits = np.random.default_rng(0).normal(size=(VOCAB, VOCAB)).astype(np.float32)
    logits[:, EOS] = 9.0
    with load(make_lookup_bundle(tmp_path / "b", logits, logits)) as engine:
        for drafter, length in (("none", 1), ("draft", 1), ("draft", 4)):
            for minimum in (0, 1, 2, 5, 9):
                result = engine.generate("a", drafter=drafter, draft_length=length, min_new_tokens=minimum)
                assert (len(result.token_ids), result.finish_reason) == (max(minimum, 0) + 1, "eos")


def test_the_same_seed_and_settings_give_the_same_text(attention: Engine) -> None:
    options: dict[str, Any] = {
        "do_sample": True,
        "drafter": "draft",
        "draft_length": 3,
        "max_new_tokens": 40,
        "acceptance": "ratio",
        "temperature": WARM,
    }
    first = attention.generate("hello", seed=1, **options)
    attention.generate("something else", seed=9, **options)
    assert attention.generate("hello", seed=1, **options).token_ids == first.token_ids
    assert attention.generate("hello", seed=2, **options).token_ids != first.token_ids
    assert first.stats.accepted > 0
    unseeded = {attention.generate("hello", **{**options, "acceptance": "auto"}).token_ids for _ in range(3)}
    assert len(unseeded) == 3


@pytest.mark.parametrize("length", [1, 3, 7])
def test_drafts_that_draw_leave_the_targets_distribution_in_the_engine(tmp_path: Path, length: int) -> None:
    """A chain of 5,000 tokens on ONNX Runtime: transitions have the table's distribution, although the draft has another one.
    The limit is one false alarm in a million; the seed is fixed."""
    rng = np.random.default_rng(1)
    logits, draft = (np.full((VOCAB, VOCAB), -np.inf, np.float32) for _ in range(2))
    states = np.arange(A, A + 6)
    logits[:, states] = rng.normal(scale=1.5, size=(VOCAB, 6))
    draft[:, states] = logits[:, states] + rng.normal(scale=1.0, size=(VOCAB, 6))
    with load(make_lookup_bundle(tmp_path / "b", logits, draft, capacity=8000), threads=1) as engine:
        result = engine.generate(
            "a", drafter="draft", draft_length=length, max_new_tokens=5000, do_sample=True, acceptance="ratio", seed=4, exactness="fast"
        )
    assert 0.2 < (result.stats.acceptance_rate or 0) < 0.9
    follows: dict[int, Counter[tuple[int, ...]]] = {}
    for before, after in zip((A, *result.token_ids), result.token_ids, strict=False):
        follows.setdefault(before, Counter())[after,] += 1
    statistic, degrees = 0.0, 0
    for before, counts in follows.items():
        p = np.exp(logits[before, states].astype(float))
        part = tables.chi_square({(int(state),): float(share) for state, share in zip(states, p / p.sum(), strict=True)}, counts)
        statistic, degrees = statistic + part[0], degrees + part[1]
    assert statistic < tables.chi_square_limit(degrees)
