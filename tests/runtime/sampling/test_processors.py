"""Processors by themselves, on vocabularies large and small, against the plainest way to compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgespec.distribution import Distribution
from edgespec.errors import RuntimeFailure, UsageError
from edgespec.runtime.options import GenerationOptions
from edgespec.runtime.sampling import processors
from edgespec.runtime.sampling.processors import Text
from edgespec.runtime.sampling.sampling import draw_several, make_sampler, make_shape, reject_recursively
from edgespec.tree import DraftTree

SIZES = (5, 259, 20_001)


def scores(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(scale=3, size=size).astype(np.float32)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, 2, 50, 300, 3000])
def test_most_are_the_largest_and_of_equals_the_first(size: int, count: int) -> None:
    for values in (scores(size), np.round(scores(size)), np.zeros(size, np.float32), np.where(scores(size) > 5, scores(size), -np.inf)):
        expected = np.sort(np.argsort(-values, kind="stable")[:count])
        np.testing.assert_array_equal(processors.most(values, count), expected)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("share", [0.01, 0.5, 0.9, 0.9999, 1.0])
def test_fewest_reach_the_share_and_one_less_does_not(size: int, share: float) -> None:
    weights = np.exp(scores(size)).astype(np.float64)
    kept = processors.fewest(weights, weights, share)
    assert (np.diff(kept) > 0).all()
    total = weights.sum()
    assert weights[kept].sum() >= share * total * (1 - 1e-9)
    assert weights[kept].sum() - weights[kept].min() <= share * total
    assert len(kept) == size or weights[kept].min() >= np.delete(weights, kept).max()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "options",
    [{}, {"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.1}, {"typical_p": 0.6}, {"top_k": 40, "top_p": 0.7, "min_p": 0.05, "temperature": 1.7}],
)
def test_a_large_vocabulary_is_shaped_like_a_small_one(size: int, options: dict[str, Any]) -> None:
    row = scores(size)
    found = make_shape(GenerationOptions(do_sample=True, **options))(row)
    p = np.exp(row.astype(np.float64) / options.get("temperature", 1.0))
    order = np.argsort(-p, kind="stable")
    p[order[options.get("top_k", size) :]] = 0
    p /= p.sum()
    reached = np.cumsum(p[order])
    p[order[int(np.searchsorted(reached, options.get("top_p", 2.0))) + 1 :]] = 0
    p[p < options.get("min_p", 0.0) * p.max()] = 0
    p /= p.sum()
    if "typical_p" in options:
        information = -np.log(p)
        order = np.argsort(np.abs(information - (p * information).sum()), kind="stable")
        p[order[int(np.searchsorted(np.cumsum(p[order]), options["typical_p"])) + 1 :]] = 0
        p /= p.sum()
    whole = np.zeros(size)
    whole[found.tokens] = found.weights
    np.testing.assert_allclose(whole, p, atol=2e-6)


def edited(row: np.ndarray, text: Text, prompt_length: int = 0, **options: Any) -> np.ndarray:
    sampler = make_sampler(GenerationOptions(**options), prompt_length=prompt_length, eos_ids=[4])
    return sampler._edited(row, text)


def test_penalties_see_the_prompt_or_the_text_and_the_block() -> None:
    row = np.array([2.0, -1.0, 1.0, 0.5, 0.25], np.float32)
    text = Text([0, 1, 3], [3, 2])
    np.testing.assert_allclose(edited(row, text, repetition_penalty=2.0), [1.0, -2.0, 0.5, 0.25, 0.25])
    np.testing.assert_allclose(edited(row, text, 2, presence_penalty=0.5), [2.0, -1.0, 0.5, 0.0, 0.25])
    np.testing.assert_allclose(edited(row, text, 2, frequency_penalty=0.5), [2.0, -1.0, 0.5, -0.5, 0.25])
    np.testing.assert_allclose(edited(row, text, 3, frequency_penalty=0.5, presence_penalty=1.0), [2.0, -1.0, -0.5, -1.0, 0.25])


def test_what_is_counted_of_a_growing_text_stays_right() -> None:
    rng = np.random.default_rng(0)
    row, context = scores(30), [1, 2, 3]
    options: dict[str, Any] = {"repetition_penalty": 1.5, "presence_penalty": 0.3, "frequency_penalty": 0.2, "no_repeat_ngram_size": 3}
    sampler = make_sampler(GenerationOptions(**options), prompt_length=3)
    for _ in range(60):
        for ahead in ((), tuple(rng.integers(0, 6, 3).tolist())):
            np.testing.assert_array_equal(
                sampler._edited(row, Text(context, ahead)), edited(row, Text([*context, *ahead], ()), 3, **options)
            )
        context.extend(rng.integers(0, 6, rng.integers(1, 4)).tolist())


@pytest.mark.parametrize("split", [0, 1, 2, 3, 5])
def test_no_ngram_twice_wherever_the_block_begins(split: int) -> None:
    text = [1, 2, 3, 1, 2]
    row = edited(np.zeros(5, np.float32), Text(text[:split], text[split:]), no_repeat_ngram_size=3)
    assert list(np.isinf(row)) == [False, False, False, True, False]
    row = edited(np.zeros(5, np.float32), Text(text[:split], text[split:]), no_repeat_ngram_size=1)
    assert list(np.isinf(row)) == [False, True, True, True, False]


def test_bans_bias_force_and_minimum() -> None:
    row = np.array([2.0, -1.0, 1.0, 0.5, 0.25], np.float32)
    np.testing.assert_array_equal(edited(row, Text([1]), banned_tokens=(0, 3)), [-np.inf, -1, 1, -np.inf, 0.25])
    np.testing.assert_array_equal(edited(row, Text([1]), logit_bias={1: 3.0}), [2, 2, 1, 0.5, 0.25])
    assert edited(row, Text([1]), 1, forced_tokens=(3, 2)).argmax() == 3
    assert edited(row, Text([1], [3]), 1, forced_tokens=(3, 2)).argmax() == 2
    np.testing.assert_array_equal(edited(row, Text([1], [3, 2]), 1, forced_tokens=(3, 2)), row)
    assert np.isinf(edited(row, Text([1], [3]), 1, min_new_tokens=2)[4])
    assert not np.isinf(edited(row, Text([1], [3, 3]), 1, min_new_tokens=2)[4])
    assert row[0] == 2.0, "the model's own buffer stays as it was"


def test_a_draft_with_a_smaller_vocabulary() -> None:
    row = scores(3)
    options: dict[str, Any] = {"banned_tokens": (4,), "logit_bias": {4: 1.0, 0: 1.0}, "repetition_penalty": 1.2, "frequency_penalty": 0.1}
    sampler = make_sampler(GenerationOptions(no_repeat_ngram_size=1, **options))
    token, q = sampler.draft(row, Text([4, 4, 1], [4]))
    assert (token in (0, 2), q) == (True, None)


def test_nothing_left_and_not_finite() -> None:
    with pytest.raises(UsageError, match="no token is allowed at position 2"):
        edited(np.zeros(2, np.float32), Text([0, 1]), no_repeat_ngram_size=1)
    sampler = make_sampler(GenerationOptions(do_sample=True))
    with pytest.raises(RuntimeFailure, match="the draft's logits are not finite"):
        sampler.draft(np.array([1, np.nan], np.float32), Text([0]))
    with pytest.raises(RuntimeFailure, match="the target's logits are not finite"):
        sampler(np.array([1, np.nan], np.float32))


@pytest.mark.parametrize("temperature", [1e-38, 1e-6, 1e30])
def test_any_temperature(temperature: float) -> None:
    shape = make_shape(GenerationOptions(do_sample=True, temperature=temperature))
    p = shape(np.array([0, 5, 4.999], np.float32))
    assert p.weights.sum() == pytest.approx(1)
    assert p.probability(1) == pytest.approx(1 / 3 if temperature > 1 else 1)


@pytest.mark.parametrize("size", [4, 20_000])
def test_draws_are_where_the_shares_are(size: int) -> None:
    weights = np.exp(scores(size)).astype(np.float64)
    p = Distribution.of_weights(np.arange(size), weights)
    edges = np.concatenate([[0], np.cumsum(p.weights)])
    for token in {0, 1, size // 3, size - 2, size - 1}:
        assert p.draw(float(edges[token] + 0.5 * p.weights[token])) == token
    assert p.draw(0.0) == 0
    assert p.draw(np.nextafter(1.0, 0.0)) == size - 1


def test_parts_of_a_distribution() -> None:
    p = Distribution(np.array([1, 4, 6]), np.array([0.5, 0.3, 0.2]))
    q = Distribution(np.array([4, 5, 6]), np.array([0.1, 0.7, 0.2]))
    assert [p.probability(token) for token in (0, 1, 4, 5, 6, 9)] == [0, 0.5, 0.3, 0, 0.2, 0]
    rest = p.minus(q)
    assert rest is not None
    np.testing.assert_allclose([rest.probability(token) for token in (1, 4, 6)], [0.5 / 0.7, 0.2 / 0.7, 0])
    assert p.minus(p) is None
    other = p.without(1)
    assert other is not None
    np.testing.assert_allclose(other.weights, [0.6, 0.4])
    assert Distribution(np.array([3]), np.array([1.0])).without(3) is None


def test_candidates_without_replacement_differ_and_end() -> None:
    q = Distribution(np.array([1, 4, 6]), np.array([0.5, 0.3, 0.2]))
    rng = np.random.default_rng(0)
    found = draw_several(q, 5, rng.random, replacement=False)
    assert sorted(token for token, _ in found) == [1, 4, 6]
    assert len(draw_several(q, 5, rng.random, replacement=True)) == 5
    all_three = [reject_recursively(q, draw_several(q, 3, rng.random, replacement=False), rng.random) for _ in range(50)]
    assert set(all_three) == {1, 4, 6}


def test_a_tree_has_as_many_distributions_as_tokens() -> None:
    with pytest.raises(ValueError, match="2 tokens but 1 distributions"):
        DraftTree.chain([1, 2], [None])
    assert DraftTree.chain([1, 2]).q_of(1) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.5}, "temperature: has no effect without do_sample"),
        ({"seed": 0}, "seed: has no effect without do_sample"),
        ({"min_new_tokens": 9, "max_new_tokens": 8}, "min_new_tokens: 9 is more than max_new_tokens, 8"),
        ({"banned_tokens": [1, 2], "forced_tokens": [2]}, "forced_tokens: 2 is banned as well"),
        ({"banned_tokens": 3}, "banned_tokens: expected token ids"),
        ({"banned_tokens": ["a"]}, "banned_tokens: 'a' is not a token id"),
        ({"logit_bias": {1: float("nan")}}, "logit_bias"),
        ({"logit_bias": {1: 1e30}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"repetition_penalty": 0}, "repetition_penalty: 0"),
        ({"repetition_penalty": 1e9}, "repetition_penalty"),
        ({"presence_penalty": float("inf")}, "presence_penalty: inf"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size: -1"),
        ({"do_sample": True, "min_p": 1.5}, "min_p: 1.5"),
        ({"do_sample": True, "typical_p": 0}, "typical_p: 0"),
        ({"do_sample": True, "temperature": float("nan")}, "temperature: nan"),
        ({"do_sample": True, "seed": 2**200}, "seed"),
        ({"do_sample": True, "acceptance": "often"}, "acceptance: 'often'"),
        ({"regex": "a", "grammar": "b"}, "regex and grammar: a text follows one grammar"),
        ({"regex": "a", "ignore_eos": True}, "ignore_eos: contradicts regex"),
        ({"regex": ""}, "regex: '' is not a text"),
        ({"json_schema": 3}, "json_schema: 3"),
        ({"stop": "a", "stop_strings": "b"}, "stop and stop_strings are one option"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        GenerationOptions.of(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"banned_tokens": (7,)}, "banned_tokens: 7 is not a token id from 0 to 4"),
        ({"forced_tokens": (-1,)}, "forced_tokens: -1"),
        ({"logit_bias": {5: 1.0}}, "logit_bias: 5"),
        ({"banned_tokens": (0, 1, 2, 3, 4)}, "no token is left"),
        ({"forced_tokens": (1, 4), "min_new_tokens": 2}, "forced_tokens: 4 ends the text before min_new_tokens"),
    ],
)
def test_ids_that_the_vocabulary_lacks(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        GenerationOptions.of(**options).check_ids(5, [4])
