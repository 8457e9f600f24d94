"""The measurement as a Markdown table, with what is missing and why below it."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.figures import median, row
from benchmarks.peers.measured import Arm, Measured, paired_ratio
from benchmarks.peers.process import Worker

HEAD = (
    "engine, mode",
    "decode tokens/s",
    "ratio",
    "prompt tokens/s",
    "ratio",
    "first token ms",
    "load s",
    "peak MB",
    "disk MB",
    "KL to float",
    "text equal to its plain text",
)
MISSING = ""


def table(measured: Measured, workers: Mapping[Arm, Worker], disk: Mapping[Arm, int], kl: Mapping[Arm, float], reference: Arm) -> str:
    """A row per arm: medians, and medians over turns of the ratio to the reference's answer to the same question.

    Args:
        measured: all answers.
        workers: the process of each arm.
        disk: bytes of what each arm loads.
        kl: divergence of each arm's target, where it is known.
        reference: the arm that ratios are to.
    """
    rows = [HEAD, tuple("---" for _ in HEAD)]
    for arm in measured.answers:
        decode, prefill = measured.decode(arm), measured.prefill(arm)
        worker, equal = workers[arm], measured.equal(arm)
        rows.append(
            (
                ", ".join(arm),
                f"{median(list(decode.values())):.1f}",
                _number(paired_ratio(decode, measured.decode(reference)), 2),
                f"{median(list(prefill.values())):.0f}",
                _number(paired_ratio(prefill, measured.prefill(reference)), 2),
                f"{median([answer['prefill_s'] for answer in measured.answers[arm].values()]) * 1e3:.0f}",
                f"{worker.load_s:.2f}",
                f"{worker.peak_rss_bytes / 1e6:.0f}",
                f"{disk[arm] / 1e6:.0f}",
                _number(kl.get(arm), 4),
                f"{equal[0]} of {equal[1]}" if equal else MISSING,
            )
        )
    lines = [*map(row, rows)]
    lines += [f"\nCould not be run: {', '.join(arm)}: {error}" for arm, error in measured.failed.items()]
    return "\n".join(lines)


def _number(value: float | None, digits: int) -> str:
    return MISSING if value is None else f"{value:.{digits}f}"
