"""When a pass makes a head's first step, and what a round of the head pays for it. Times are given, so nothing depends on the machine."""

from __future__ import annotations

import pytest

from edgespec.runtime.drafters.first_step import FirstStepUse


def use_after(rounds: list[bool], inside_ms: float = 1.0, apart_ms: float = 1.5) -> FirstStepUse:
    """After ``rounds``, true where the head was asked, with the steps made where it says."""
    use = FirstStepUse(inside_ms, apart_ms)
    ready = True
    for asked in rounds:
        inside = asked or use.pays_behind_others
        use.observe(asked=asked, apart=asked and not ready, inside=inside)
        ready = inside
    return use


def test_a_head_alone_pays_for_one_step_a_round() -> None:
    use = use_after([True] * 200)
    assert use.round_ms == pytest.approx(1.0)


def test_the_step_is_made_where_the_head_is_mostly_asked_next() -> None:
    assert use_after([False, True] * 100).pays_behind_others
    assert use_after([False, True] * 100).round_ms == pytest.approx(2.0, rel=0.05), "of its two steps one is not used"
    many_others = use_after([*[False] * 4, True] * 60)
    assert not many_others.pays_behind_others
    assert many_others.round_ms == pytest.approx(2.5, rel=0.05), "one of its own before the round, and one in its pass that nobody uses"


def test_what_is_dear_apart_is_made_in_the_pass() -> None:
    assert use_after([*[False] * 4, True] * 60, apart_ms=9.0).pays_behind_others
    assert not use_after([False, True] * 100, apart_ms=0.5).pays_behind_others
