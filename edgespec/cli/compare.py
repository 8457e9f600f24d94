"""Plain and speculative decoding side by side: the measurement behind the quickstart's table.

The arms take turns within a repetition, so that a machine that slows down slows all of them; the first repetition is a
warm-up and is not counted; figures are medians. The base of every ratio is plain decoding in passes of one token, the
fastest plain decoding there is, so what exactness costs is in the ratio and not hidden in its base.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgespec.bench.measure import BASE, PLAIN, geometric_mean
from edgespec.cli.output import table

if TYPE_CHECKING:
    from edgespec.runtime import Engine

# What makes a gain worth the name: less than this is within the noise of a shared machine.
LEAST_GAIN = 1.02

ARMS: dict[str, dict[str, Any]] = {
    BASE: {"drafter": "none", "exactness": "fast"},
    PLAIN: {"drafter": "none", "exactness": "exact"},
    "draft": {"drafter": "draft", "exactness": "exact"},
    "auto": {"drafter": "auto", "exactness": "exact"},
}


@dataclasses.dataclass(frozen=True)
class ArmResult:
    """One way of decoding one prompt. ``speed`` is in tokens per second after the first, the median of the repetitions."""

    speed: float
    tokens_per_pass: float
    new_tokens: int
    token_ids: tuple[int, ...]
    drafter: str
    off: str | None


@dataclasses.dataclass(frozen=True)
class Comparison:
    """All arms on all prompts: ``results[prompt][arm]``."""

    results: Mapping[str, Mapping[str, ArmResult]]

    def ratio(self, prompt: str, arm: str) -> float:
        """Speed of ``arm`` over that of the fastest plain decoding."""
        base = self.results[prompt][BASE].speed
        return self.results[prompt][arm].speed / base if base else 0.0

    def speedup(self, arm: str) -> float:
        """Geometric mean of the ratios over the prompts."""
        return geometric_mean([self.ratio(prompt, arm) for prompt in self.results])

    def tokens_per_pass(self, arm: str) -> float:
        return statistics.fmean(arms[arm].tokens_per_pass for arms in self.results.values())

    def texts_equal(self, prompt: str) -> bool:
        """Whether every exact arm wrote the very tokens of exact plain decoding."""
        arms = self.results[prompt]
        return all(arm == BASE or result.token_ids == arms[PLAIN].token_ids for arm, result in arms.items())

    def as_dict(self) -> dict[str, Any]:
        """Everything in plain JSON types."""
        return {
            "prompts": [
                {
                    "prompt": prompt,
                    "texts_equal": self.texts_equal(prompt),
                    "arms": {
                        arm: {
                            "tokens_per_s": result.speed,
                            "speedup": self.ratio(prompt, arm),
                            "tokens_per_pass": result.tokens_per_pass,
                            "new_tokens": result.new_tokens,
                            "drafter": result.drafter,
                            "speculation_off": result.off,
                        }
                        for arm, result in arms.items()
                    },
                }
                for prompt, arms in self.results.items()
            ],
        }


def compare(
    engine: Engine,
    prompts: Sequence[str],
    *,
    arms: Mapping[str, Mapping[str, Any]] = ARMS,
    repetitions: int = 3,
    max_new_tokens: int = 96,
    on_run: Callable[[], None] = lambda: None,
) -> Comparison:
    """Run every arm on every prompt ``1 + repetitions`` times, the first time apart; ``on_run`` is called after each run."""
    speeds: dict[tuple[str, str], list[float]] = {(prompt, arm): [] for prompt in prompts for arm in arms}
    last: dict[tuple[str, str], Any] = {}
    for repetition in range(1 + repetitions):
        for prompt in prompts:
            for arm, options in arms.items():
                result = engine.generate(prompt, max_new_tokens=max_new_tokens, **options)
                last[prompt, arm] = result
                if repetition:
                    speeds[prompt, arm].append(result.stats.decode_tokens_per_s)
                on_run()

    def summary(prompt: str, arm: str) -> ArmResult:
        result, stats = last[prompt, arm], last[prompt, arm].stats
        speed = statistics.median(speeds[prompt, arm])
        return ArmResult(speed, stats.tokens_per_pass, stats.new_tokens, tuple(result.token_ids), stats.drafter, stats.speculation_off)

    return Comparison({prompt: {arm: summary(prompt, arm) for arm in arms} for prompt in prompts})


def comparison_table(comparison: Comparison) -> str:
    """One row for each prompt and arm, for a person."""
    rows = []
    for prompt, arms in comparison.results.items():
        for index, (arm, result) in enumerate(arms.items()):
            equal = "" if arm in (BASE, PLAIN) else "yes" if result.token_ids == arms[PLAIN].token_ids else "NO"
            title = prompt if len(prompt) <= 40 else prompt[:39] + "…"
            ratio = f"{comparison.ratio(prompt, arm):.2f}x"
            rows.append((title if index == 0 else "", arm, f"{result.speed:.1f}", ratio, f"{result.tokens_per_pass:.2f}", equal))
    return table(rows, ("prompt", "decoding", "tokens/s", "speed", "tokens/pass", "text equal"))


def verdict(comparison: Comparison, arm: str) -> str:
    """One honest sentence about ``arm``, which also says on how many prompts its drafters were off in the end."""
    speedup = comparison.speedup(arm)
    passes = f"{comparison.tokens_per_pass(arm):.2f} tokens per pass"
    text = (
        f"{speedup:.2f}x the speed of plain decoding, {passes}"
        if speedup >= LEAST_GAIN
        else f"no gain on this machine ({speedup:.2f}x, {passes})"
    )
    off = sum(arms[arm].off is not None for arms in comparison.results.values())
    return f"{arm}: {text}" + (f"; its drafters did not pay and were off on {off} of {len(comparison.results)} prompts" if off else "")


# The arm "draft" would otherwise pass for a measurement of the draft model.
FILLING = (
    "A row that would be padding carries an n-gram guess, in every arm with a drafter: a gain while the drafters are off comes from these."
)
