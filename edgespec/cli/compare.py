"""How a measurement is put to a person: a table by prompt, and an honest sentence for each way of decoding."""

from __future__ import annotations

from typing import Any

from edgespec.bench.measure import BASE, PLAIN, Measured
from edgespec.cli.output import table


def arms(*drafters: str) -> dict[str, dict[str, Any]]:
    """The two kinds of plain decoding, and each of these drafters."""
    return {
        BASE: {"drafter": "none", "exactness": "fast"},
        PLAIN: {"drafter": "none", "exactness": "exact"},
        **{drafter: {"drafter": drafter, "exactness": "exact"} for drafter in drafters},
    }


def comparison_table(measured: Measured) -> str:
    """One row for each prompt and arm."""
    rows = []
    for number, question in enumerate(measured.questions):
        title = question.text if len(question.text) <= 40 else question.text[:39] + "…"
        for index, (arm, answers) in enumerate(measured.answers.items()):
            answer = answers[number]
            equal = "" if arm in (BASE, PLAIN) else "yes" if answer.equal else "NO"
            speed, ratio = f"{answer.decode_tokens_per_s:.1f}", f"{measured.ratio(arm, number):.2f}x"
            rows.append((title if index == 0 else "", arm, speed, ratio, f"{answer.tokens_per_pass:.2f}", equal))
    return table(rows, ("prompt", "decoding", "tokens/s", "speed", "tokens/pass", "text equal"))


def verdict(measured: Measured, arm: str) -> str:
    """One honest sentence about ``arm``, which also says on how many prompts its drafters were off in the end."""
    from edgespec.runtime.tuning.controller import LEAST_GAIN

    speedup, answers = measured.speedup(arm), measured.answers[arm]
    passes = f"{measured.tokens_per_pass(arm):.2f} tokens per pass"
    text = (
        f"{speedup:.2f}x the speed of plain decoding, {passes}"
        if speedup >= LEAST_GAIN
        else f"no gain on this machine ({speedup:.2f}x, {passes})"
    )
    off = sum(answer.speculation_off is not None for answer in answers)
    return f"{arm}: {text}" + (f"; its drafters did not pay and were off on {off} of {len(answers)} prompts" if off else "")
