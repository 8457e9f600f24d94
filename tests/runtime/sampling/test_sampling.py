"""Samplers draw from the distribution that they say they draw from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgespec.errors import RuntimeFailure
from edgespec.runtime.options import GenerationOptions
from edgespec.runtime.sampling.sampling import Sampler, make_shape
from edgespec.runtime.sampling.sampling import make_sampler as make_sampler_of

LOGITS = np.log(np.array([0.5, 0.25, 0.15, 0.1], np.float32))


def make_sampler(**options: Any) -> Sampler:
    return make_sampler_of(GenerationOptions(**options))


def shares(sampler_options: dict[str, float], draws: int = 20_000) -> np.ndarray:
    sample = make_sampler(do_sample=True, seed=1, **sampler_options)
    return np.bincount([sample(LOGITS) for _ in range(draws)], minlength=4) / draws


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.5, 0.25, 0.15, 0.1]),
        ({"temperature": 0.5}, np.array([0.25, 0.0625, 0.0225, 0.01]) / 0.345),
        ({"top_k": 2}, [2 / 3, 1 / 3, 0, 0]),
        ({"top_p": 0.8}, np.array([0.5, 0.25, 0.15, 0]) / 0.9),
        ({"top_k": 1}, [1, 0, 0, 0]),
    ],
)
def test_frequencies(options: dict[str, float], expected: list[float]) -> None:
    # Four standard deviations of a share of 20,000 draws are at most 0.0142; the seed is fixed, so there are no false alarms.
    assert np.abs(shares(options) - np.asarray(expected)).max() < 0.0142


def test_seed_repeats_and_seeds_differ() -> None:
    def draw(seed: int) -> list[int]:
        sample = make_sampler(do_sample=True, seed=seed)
        return [sample(LOGITS) for _ in range(40)]

    assert draw(3) == draw(3)
    assert draw(3) != draw(4)


def test_greedy_takes_the_lowest_of_equals() -> None:
    assert make_sampler()(np.array([1, 3, 3], np.float32)) == 1


def test_padding_of_the_head_has_no_probability() -> None:
    logits = np.array([1.0, 2.0, -np.inf], np.float32)
    assert make_shape(GenerationOptions(do_sample=True))(logits).probability(2) == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_not_finite(bad: float) -> None:
    with pytest.raises(RuntimeFailure, match="not finite"):
        make_sampler(do_sample=True, seed=1)(np.array([0, bad], np.float32))
