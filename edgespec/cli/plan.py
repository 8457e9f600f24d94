"""``edgespec plan``: what a bundle takes in memory, part by part, and what fits a budget. Loads no model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgespec.cli.bundle_argument import BUNDLE
from edgespec.cli.options import MEMORY_OPTIONS, with_options
from edgespec.cli.output import facts, print_json, table

if TYPE_CHECKING:
    from edgespec.runtime.memory.plan import Plan, Settings


@click.command(short_help="Show what a bundle takes in memory.")
@click.argument("bundle", type=BUNDLE)
@with_options(*MEMORY_OPTIONS)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as one JSON object.")
def plan(bundle: Path, as_json: bool, **options: Any) -> None:
    """Show what BUNDLE takes in memory on this machine, and with a budget what fits and what is given up for it."""
    from edgespec.runtime.memory.ahead import plan_bundle

    found = plan_bundle(bundle, **options)
    if as_json:
        print_json(found.as_dict())
    else:
        click.echo(describe(found))


def describe(found: Plan) -> str:
    """The plan for a person: parts, the peak of their sum, and what there is for it."""
    rows = [(part.name, megabytes(part.private), megabytes(part.evictable)) for part in found.parts]
    parts = table(rows, ("MB", "private", "evictable"))
    budget = f", of a budget of {found.budget / 1e6:.0f} MB" if found.budget else ""
    pairs = [
        ("peak", f"{found.peak / 1e6:.0f} MB, {found.ceiling / 1e6:.0f} MB at most{budget}"),
        *settings_facts(found.settings),
        *(("given up", step) for step in found.steps),
    ]
    return f"{parts}\n\n{facts(pairs)}"


def settings_facts(settings: Settings) -> list[tuple[str, str]]:
    window = f", of which drafts see {settings.draft_window}" if 0 < settings.draft_window < settings.context else ""
    return [
        ("context", f"{settings.context} tokens{window}"),
        ("KV caches", settings.kv[0]),
        ("draft length", f"at most {settings.width - 1}"),
        ("draft models", ", ".join(settings.drafts) or "none"),
        ("prompts", f"in chunks of {settings.chunk} tokens"),
    ]


def megabytes(count: int) -> str:
    return f"{count / 1e6:.1f}" if count else ""
