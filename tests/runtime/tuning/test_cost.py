"""Costs that follow what real passes take."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from edgespec.runtime.tuning.cost import LOOK_UP_MS, Costs, RunningCosts

START = Costs({1: 4.0, 2: 5.0, 4: 6.0, 8: 9.0}, {"draft": 1.0}, True)


def after(passes: list[tuple[int, float]]) -> RunningCosts:
    costs = RunningCosts(START)
    for width, ms in passes:
        costs.saw_pass(width, ms / 1000)
    return costs


def test_before_any_pass_they_are_what_was_measured() -> None:
    costs = RunningCosts(START)
    assert [costs.of_width(width) for width in (1, 3, 8, 16)] == [4.0, 5.5, 9.0, 18.0]
    assert costs.of_draft("draft", 3) == 3.0
    assert costs.of_draft("ngram", 2) == pytest.approx(2 * LOOK_UP_MS)


def test_a_heads_first_step_is_no_part_of_a_pass() -> None:
    """It is charged to the head, and would else be charged twice."""
    costs = RunningCosts(dataclasses.replace(START, first_ms={"eagle": 1.0}))
    for _ in range(20):
        costs.saw_pass(1, 0.004)
        costs.saw_pass(2, 0.006, first_step=True)
    assert costs.of_width(1) == pytest.approx(4.0)
    assert costs.of_width(2) == pytest.approx(5.0)
    for _ in range(40):
        costs.saw_pass(1, 0.008)
        costs.saw_pass(2, 0.012, first_step=True)
    assert costs.of_width(2) == pytest.approx(10.0, rel=0.02)


def test_a_first_step_may_have_been_measured_dearer_than_a_pass_is() -> None:
    costs = RunningCosts(dataclasses.replace(START, first_ms={"eagle": 9.0}))
    for _ in range(20):
        costs.saw_pass(1, 0.004, first_step=True)
    assert 0 < costs.of_width(1) < 4.0


def test_a_slower_machine_is_slower_at_every_width_and_in_drafting() -> None:
    costs = after([(4, 12.0)] * 20)
    assert [costs.of_width(width) for width in (1, 4, 8)] == pytest.approx([8.0, 12.0, 18.0])
    assert costs.of_draft("draft", 2) == pytest.approx(4.0)
    assert costs.of_step("draft") == costs.of_first_step("draft") == pytest.approx(2.0)
    costs.saw_draft("draft", 1, 0.001)
    assert costs.of_draft("draft", 2) == pytest.approx(4.0), "one step says nothing"


def test_a_width_that_was_measured_wrongly_is_corrected_alone() -> None:
    costs = after([(1, 4.0), (2, 7.5), (4, 6.0)] * 20)
    assert [costs.of_width(width) for width in (1, 2, 4, 8)] == pytest.approx([4.0, 7.5, 6.0, 9.0])


def test_disturbances_do_not_count() -> None:
    rng = np.random.default_rng(0)
    passes = [(width, START.of_width(width) * float(rng.normal(1, 0.02))) for width in rng.choice([1, 2, 4], 200).tolist()]
    for place in rng.choice(200, 40, replace=False):
        passes[place] = (passes[place][0], 100.0)
    costs = after(passes)
    assert [costs.of_width(width) for width in (1, 2, 4)] == pytest.approx([4.0, 5.0, 6.0], rel=0.05)


def test_a_width_last_used_while_the_machine_was_busy_is_not_dear() -> None:
    costs = after([(1, 8.0), (8, 18.0)] * 20 + [(1, 4.0)] * 40)
    assert costs.of_width(8) == pytest.approx(9.0)


def test_draft_steps() -> None:
    costs = RunningCosts(START)
    costs.saw_draft("draft", 40, 1.0)  # catches up on a whole prompt
    for _ in range(9):
        costs.saw_draft("draft", 3, 0.006)
    assert costs.of_draft("draft", 2) == pytest.approx(4.0)
