"""The loop on a target whose next token is a table look-up, so that what is accepted is designed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from edgespec.errors import CapacityError
from edgespec.runtime import GenerationResult, load
from tests.helpers.bundles import EOS, VOCAB, alphabet_table, make_attention_bundle, make_lookup_bundle

A = ord("a")
CYCLE = "bcdefghijklmnopqrstuvwxyza" * 4


def wrong_after(tokens: Sequence[int]) -> list[int]:
    """The alphabet, but with a wrong answer to ``tokens``."""
    table = alphabet_table()
    for token in tokens:
        table[token] = ord("!")
    return table


def generate(bundle: Path, prompt: str = "a", **options: object) -> GenerationResult:
    with load(bundle, threads=1) as engine:
        result = engine.generate(prompt, **options)
        assert engine._model("target").length == result.stats.prompt_tokens + result.stats.new_tokens - 1
    check_counters(result)
    return result


def check_counters(result: GenerationResult) -> None:
    stats = result.stats
    assert stats.new_tokens == len(result.token_ids) == stats.accepted + stats.own_tokens
    ended_inside = 1 + stats.target_passes - stats.own_tokens
    assert ended_inside in (0, 1), "a pass gives one token of its own, but for the last one where the text ended before it"
    assert 0 <= stats.accepted <= stats.drafted
    assert stats.target_passes == sum(stats.rounds_by_draft_length.values())
    assert stats.drafted == sum(length * rounds for length, rounds in stats.rounds_by_draft_length.items())
    assert stats.drafted == sum(stats.drafted_by_position.values())
    assert stats.accepted == sum(stats.accepted_by_position.values())
    assert stats.as_dict()["tokens_per_pass"] == pytest.approx((stats.new_tokens - 1) / stats.target_passes if stats.target_passes else 1)
    assert 0 <= stats.run_s <= stats.decode_s
    assert stats.as_dict()["peak_rss_bytes"] > 2**20


@pytest.mark.parametrize("length", [1, 2, 3, 7])
def test_all_accepted(tmp_path: Path, length: int) -> None:
    bundle = make_lookup_bundle(tmp_path / "b", draft_table=alphabet_table())
    rounds = 5
    result = generate(bundle, drafter="draft", draft_length=length, max_new_tokens=1 + rounds * (length + 1))
    assert result.text == CYCLE[: 1 + rounds * (length + 1)]
    assert (result.stats.target_passes, result.stats.drafted, result.stats.accepted) == (rounds, rounds * length, rounds * length)
    assert result.stats.draft_passes == rounds * length


@pytest.mark.parametrize("length", [1, 3])
def test_none_accepted(tmp_path: Path, length: int) -> None:
    bundle = make_lookup_bundle(tmp_path / "b", draft_table=[ord("!")] * VOCAB)
    result = generate(bundle, drafter="draft", draft_length=length, max_new_tokens=20)
    assert result.text == CYCLE[:20]
    assert (result.stats.target_passes, result.stats.accepted) == (19, 0)


@pytest.mark.parametrize("first", [1, 2, 3])
def test_the_first_k_accepted(tmp_path: Path, first: int) -> None:
    # The draft errs on every (first + 1)-th letter: each round of 4 drafts accepts `first`, and the target corrects.
    bad = [A + 1 + index for index in range(first, 25, first + 1)]
    bundle = make_lookup_bundle(tmp_path / "b", draft_table=wrong_after(bad))
    rounds = 24 // (first + 1)
    result = generate(bundle, drafter="draft", draft_length=4, max_new_tokens=1 + rounds * (first + 1))
    assert result.text == CYCLE[: 1 + rounds * (first + 1)]
    assert (result.stats.target_passes, result.stats.accepted) == (rounds, rounds * first)


@pytest.mark.parametrize("end", range(1, 9))
def test_end_of_text_in_a_block_ends_exactly_there(tmp_path: Path, end: int) -> None:
    table = alphabet_table()
    table[A + end] = EOS
    bundle = make_lookup_bundle(tmp_path / "b", table, table)
    for drafter in ("draft", "none"):
        result = generate(bundle, drafter=drafter, draft_length=4, max_new_tokens=50)
        assert result.finish_reason == "eos"
        assert result.text == CYCLE[:end]
        assert result.token_ids == (*(A + 1 + index for index in range(end)), EOS)


def test_each_of_several_end_tokens_ends(tmp_path: Path) -> None:
    bundle = make_lookup_bundle(tmp_path / "b", draft_table=alphabet_table(), eos_ids=(EOS, ord("m"), ord("f")))
    assert generate(bundle, drafter="draft", draft_length=3).text == "bcdef"
    result = generate(bundle, drafter="draft", draft_length=3, max_new_tokens=20, ignore_eos=True)
    assert (result.text, result.finish_reason) == (CYCLE[:20], "length")


@pytest.mark.parametrize("drafter", ["draft", "ngram", "auto", "none"])
@pytest.mark.parametrize("limit", range(1, 7))
def test_the_limit_is_exact(tmp_path: Path, limit: int, drafter: str) -> None:
    bundle = make_lookup_bundle(tmp_path / "b", draft_table=alphabet_table())
    result = generate(bundle, "abcdefghijabc", drafter=drafter, draft_length=4, max_new_tokens=limit)
    assert len(result.token_ids) == limit
    assert (result.text, result.finish_reason) == ("defghijk"[:limit], "length")


def test_no_drafts_beyond_the_limit(tmp_path: Path) -> None:
    bundle = make_lookup_bundle(tmp_path / "b", draft_table=alphabet_table())
    drafted = [generate(bundle, drafter="draft", draft_length=4, max_new_tokens=limit).stats.drafted for limit in range(1, 8)]
    assert drafted == [0, 0, 1, 2, 3, 4, 4]


@pytest.mark.parametrize("drafter", ["draft", "none", "ngram"])
@pytest.mark.parametrize("width", [4, 8])
def test_a_full_cache_ends_every_drafter_at_the_same_token(tmp_path: Path, drafter: str, width: int) -> None:
    bundle = make_lookup_bundle(tmp_path / "b", draft_table=alphabet_table(), capacity=40, max_width=width)
    result = generate(bundle, "abcdef", drafter=drafter, draft_length=3, max_new_tokens=1000)
    assert result.finish_reason == "capacity"
    assert result.text == CYCLE[5:40]


def test_a_prompt_that_does_not_fit(tmp_path: Path) -> None:
    bundle = make_lookup_bundle(tmp_path / "b", capacity=16)
    assert len(generate(bundle, "a" * 16, max_new_tokens=9).token_ids) == 1
    with pytest.raises(CapacityError, match="17 tokens and the cache holds 16"):
        generate(bundle, "a" * 17, max_new_tokens=9)


def test_ngram_accepts_a_repetition(tmp_path: Path) -> None:
    bundle = make_lookup_bundle(tmp_path / "b")
    result = generate(bundle, "abcdefghijklmnopqrstuvwxyzabc", drafter="ngram", draft_length=7, max_new_tokens=41)
    assert result.text == CYCLE[2:43]
    assert (result.stats.target_passes, result.stats.accepted) == (5, 35)


DRAFTERS: tuple[tuple[str, int | str], ...] = (
    ("draft", 1),
    ("draft", 4),
    ("draft", 7),
    ("draft", "auto"),
    ("ngram", 5),
    ("tree", 7),
    ("tree", "auto"),
    ("lookahead", 7),
    ("ngram,tree", 6),
    ("auto", "auto"),
)


@pytest.mark.parametrize(("seed", "window"), [(None, None), (None, 16), (1, None), (2, 50)])
def test_every_drafter_gives_the_plain_text(tmp_path: Path, seed: int | None, window: int | None) -> None:
    bundle = make_attention_bundle(tmp_path / "b", draft_noise=0.15, capacity=300, window=window)
    sampling = {} if seed is None else {"do_sample": True, "temperature": 0.8, "top_k": 30, "top_p": 0.95, "seed": seed}
    rng = np.random.default_rng(0)
    accepted = 0
    with load(bundle, threads=1) as engine:
        for size in (1, 2, 30, 140, 200):
            prompt = rng.integers(0, 256, size).tolist()
            plain = engine.generate(prompt, drafter="none", max_new_tokens=60, ignore_eos=True, **sampling)
            assert plain.stats.exactness == "exact"
            for drafter, length in DRAFTERS:
                for exactness in ("exact", "fast") if size == 30 else ("exact",):  # with float32 both are the same text
                    found = engine.generate(
                        prompt,
                        drafter=drafter,
                        draft_length=length,
                        max_new_tokens=60,
                        ignore_eos=True,
                        exactness=exactness,
                        **sampling,
                    )
                    assert found.token_ids == plain.token_ids, (size, drafter, length, exactness)
                    check_counters(found)
                    accepted += found.stats.accepted
    assert accepted > 200, "without accepted drafts this shows nothing"


def test_a_model_as_its_own_draft_is_always_right(tmp_path: Path) -> None:
    bundle = make_attention_bundle(tmp_path / "b", draft_noise=0.0)
    result = generate(bundle, "Once upon a time", drafter="draft", draft_length=3, max_new_tokens=1 + 4 * 12)
    assert result.stats.acceptance_rate == 1
    assert result.stats.tokens_per_pass == 4


def test_sampling_follows_the_targets_distribution_under_rejections(tmp_path: Path) -> None:
    # After any token the target says b, c, d with 0.5, 0.3, 0.2. The draft always says d: mostly rejected.
    logits = np.full((VOCAB, VOCAB), -30.0, np.float32)
    logits[:, [A + 1, A + 2, A + 3]] = np.log([0.5, 0.3, 0.2])
    bundle = make_lookup_bundle(tmp_path / "b", logits, [A + 3] * VOCAB, capacity=4096)
    result = generate(bundle, drafter="draft", draft_length=3, max_new_tokens=4000, do_sample=True, seed=7)
    shares = np.bincount(result.token_ids, minlength=VOCAB)[[A + 1, A + 2, A + 3]] / 4000
    # Four standard deviations are at most 0.032; the seed is fixed, so there are no false alarms.
    assert np.abs(shares - [0.5, 0.3, 0.2]).max() < 0.032
    assert result.stats.accepted > 500
