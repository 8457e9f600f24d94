"""``edgespec doctor``: what this machine has to run on, and what of a bundle runs there."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgespec.cli.bundle_argument import BUNDLE
from edgespec.cli.output import facts, indent, note, print_json, printable

if TYPE_CHECKING:
    from edgespec.runtime.providers.doctor import ProviderReport, Report


@click.command(short_help="Show what this machine can run on, and try it.")
@click.argument("bundle", type=BUNDLE, required=False)
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
def doctor(bundle: Path | None, as_json: bool) -> None:
    """Show the processor, ONNX Runtime and its execution providers, and try each for at most ten seconds: a tiny graph, and with a
    BUNDLE its models. What is not installed is listed with how to get it.
    """
    from edgespec.bundle import open_bundle
    from edgespec.runtime.providers.doctor import examine

    if bundle is not None:
        open_bundle(bundle)  # a damaged one is an error of its own, not of a provider
    report = examine(bundle, lambda name: note(f"trying {name}"))
    note("")
    if as_json:
        print_json(dataclasses.asdict(report))
    else:
        click.echo(printable(describe(report)))


def describe(report: Report) -> str:
    """The report for a person."""
    head = facts(
        [
            ("machine", report.machine),
            ("system", report.system),
            ("instructions", ", ".join(report.instructions) or "not known"),
            ("threads", f"{report.threads} (of a pass, unless --threads says otherwise)"),
            ("ONNX Runtime", f"{report.onnxruntime}, {report.build}"),
            ("telemetry", report.telemetry),
        ]
    )
    here = [item for item in report.providers if item.check is not None]
    missing = [(item.name, item.get or "") for item in report.providers if item.check is None]
    parts = ["providers", *(indent(_provider_text(item)) for item in here)]
    if missing:
        parts += ["", "not installed", indent(facts(missing))]
    return "\n".join([head, "", *parts])


def _provider_text(item: ProviderReport) -> str:
    check = item.check
    assert check is not None
    state = f"works ({check.ms:.2f} ms for a tiny graph)" if check.ms is not None else f"does not work: {check.error}"
    devices = f", {', '.join(item.devices)}" if item.devices else ""
    lines = [f"{item.name} ({item.onnxruntime}{devices}): {state}"]
    rows = []
    for model in check.models:
        speed = "does not run" if model.ms is None else f"{model.ms:.1f} ms a token"
        rows.append((f"{model.model} ({model.profile} profile)", f"{speed}, {model.note or 'all nodes here'}"))
    return "\n".join([*lines, indent(facts(rows))]) if rows else lines[0]
