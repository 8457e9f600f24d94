"""``edgespec verify``: does the bundle keep its promises on this machine?"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgespec.bundle import check_hashes, open_bundle
from edgespec.cli.bundle_argument import BUNDLE
from edgespec.cli.inspect import total_bytes
from edgespec.cli.options import ENGINE_OPTIONS, open_engine, with_options
from edgespec.cli.output import human_bytes, note, print_json, progress, table

if TYPE_CHECKING:
    from edgespec.runtime import VerifyReport

DIFFERENT = 1


@click.command(short_help="Check hashes, equal widths, and speculative against plain text.")
@click.argument("bundle", type=BUNDLE)
@with_options(*ENGINE_OPTIONS)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def verify(bundle: Path, as_json: bool, **options: Any) -> int:
    """Check BUNDLE: the sha256 of its files, which widths of a pass give equal bits on this machine, and that every drafter
    writes the very tokens of plain decoding on built-in prompts.

    Exit code 1 if a text differs, 2 if the bundle is damaged or cannot be run.
    """
    manifest = open_bundle(bundle)
    size = total_bytes(manifest)
    with progress("hashes", size) as advance:
        check_hashes(bundle, manifest, advance)
    from edgespec.runtime import verify as compare_texts

    with open_engine(bundle, options) as engine:
        report = compare_texts(engine, on_case=lambda case: note(f"prompt {case.prompt + 1}, {case.drafter}, {case.draft_length}"))
    note("")
    if as_json:
        hashes = {"files": len(manifest.files), "bytes": size, "ok": True}
        print_json({"ok": report.ok, "hashes": hashes, **dataclasses.asdict(report)})
    else:
        click.echo(f"hashes  {len(manifest.files)} files, {human_bytes(size)}: as the manifest says")
        click.echo(describe(report))
    return 0 if report.ok else DIFFERENT


def describe(report: VerifyReport) -> str:
    """The report for a person: widths, one line per comparison, and a last line that says it all."""
    exactness = report.exactness
    if exactness.grade == "exact":
        widths = f"equal bits for passes of {ranges(exactness.widths)} tokens"
        if exactness.pads:
            widths += ", where attention gets a second row for one token alone"
    else:
        widths = f"no two widths give equal bits on this machine; logits differ by up to {exactness.difference:.2g}"
        if exactness.grade == "checked":
            widths += f", and what is tied within {exactness.margin:.2g} is scored again"
    rows = [
        (
            str(case.prompt + 1),
            case.drafter,
            str(case.draft_length),
            f"{case.accepted} of {case.tokens}",
            "equal" if case.first_difference is None else f"differs from token {case.first_difference + 1}",
        )
        for case in report.cases
    ]
    different = sum(case.first_difference is not None for case in report.cases)
    last = (
        "speculative equals plain on every prompt"
        if report.ok
        else f"{different} of {len(report.cases)} speculative texts differ from plain"
    )
    body = table(rows, ("prompt", "drafter", "draft length", "accepted", "text")) if rows else "no drafter to compare with plain decoding"
    return f"grade   {exactness.grade}\nwidths  {widths}\n\n{body}\n\n{last}"


def ranges(numbers: tuple[int, ...]) -> str:
    """Ascending numbers in short: 2-16, 24, 32."""
    groups: list[list[int]] = []
    for number in numbers:
        if groups and number == groups[-1][-1] + 1:
            groups[-1].append(number)
        else:
            groups.append([number])
    return ", ".join(str(group[0]) if len(group) == 1 else f"{group[0]}-{group[-1]}" for group in groups)
