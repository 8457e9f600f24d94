"""The draft length, on simulated acceptances and costs."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec.runtime.controller import AutoLength, FixedLength


def simulate(policy: AutoLength, acceptance: float, rounds: int, seed: int = 0) -> list[int]:
    """Draft lengths that the policy chose while each drafted token was right with probability ``acceptance``."""
    rng = np.random.default_rng(seed)
    lengths = []
    for _ in range(rounds):
        length = policy.length()
        wrong = np.flatnonzero(rng.random(length) >= acceptance)
        policy.observe(length, int(wrong[0]) if len(wrong) else length)
        lengths.append(length)
    return lengths


def best_length(acceptance: float, target: list[float], draft: float) -> int:
    def speed(count: int) -> float:
        return sum(acceptance**power for power in range(count + 1)) / (target[count] + count * draft)

    return max(range(len(target)), key=speed)


# A pass of n tokens, measured for a 4-bit model on two cores.
CURVE = [3.65 * ratio for ratio in (1, 1.04, 1.21, 1.35, 1.52, 1.69, 1.86, 2.03)]


@pytest.mark.parametrize("acceptance", [0.5, 0.7, 0.9, 0.98])
@pytest.mark.parametrize("draft", [0.0, 0.4])
def test_settles_near_the_best_length(acceptance: float, draft: float) -> None:
    policy = AutoLength(lambda count: CURVE[count - 1], draft, 7)
    late = simulate(policy, acceptance, 400)[100:]
    best = best_length(acceptance, CURVE, draft)

    def gain(count: int) -> float:
        return sum(acceptance**power for power in range(count + 1)) * CURVE[0] / (CURVE[count] + count * draft)

    gains = [gain(count) for count in late]
    assert np.mean(gains) > 0.95 * gain(best), (best, np.bincount(late))


def test_switches_off_when_it_does_not_pay_and_says_so() -> None:
    policy = AutoLength(lambda count: CURVE[count - 1], 2.0, 7)
    lengths = simulate(policy, 0.1, 400)
    assert np.mean(np.array(lengths[40:]) == 0) > 0.9
    assert sum(length > 0 for length in lengths[40:]) >= 4, "it tries again later"
    while policy.length():
        policy.observe(1, 0)
    assert policy.off is not None
    assert "%" in policy.off


def test_comes_back_when_the_text_becomes_easy() -> None:
    policy = AutoLength(lambda count: CURVE[count - 1], 0.4, 7)
    simulate(policy, 0.0, 100)
    lengths = simulate(policy, 0.98, 400)
    assert np.mean(lengths[-100:]) > 3
    assert policy.off is None


def test_a_perfect_and_cheap_draft_gets_the_most() -> None:
    policy = AutoLength(lambda count: 1 + 0.01 * count, 0.0, 7)
    assert simulate(policy, 1.0, 100)[-1] == 7


def test_nothing_to_choose_from() -> None:
    assert AutoLength(lambda _: 1.0, 0.0, 0).length() == 0


def test_fixed() -> None:
    policy = FixedLength(3)
    policy.observe(3, 0)
    assert (policy.length(), policy.off) == (3, None)
