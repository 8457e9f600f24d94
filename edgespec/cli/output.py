"""What several commands print: sizes, tables, JSON, progress bars."""

from __future__ import annotations

import contextlib
import json
import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from edgespec.manifest import Fidelity
    from edgespec.runtime import Stats


def human_bytes(count: int) -> str:
    """``count`` bytes in decimal units, as disks and downloads are labelled: 134.5 MB."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.95 or unit == "GB":
            break
        size /= 1000
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"


def print_json(value: Any, indent: int | None = 1) -> None:
    """One JSON object on stdout, on one line without ``indent``.

    ``allow_nan`` is off: NaN is not JSON, and a reader in another language would stumble.
    """
    click.echo(json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False))


def table(rows: Sequence[Sequence[str]], header: Sequence[str] = ()) -> str:
    """Rows in aligned columns, the first to the left and the others to the right; a rule below the header."""
    lines = [list(header), *map(list, rows)] if header else [list(row) for row in rows]
    if not lines:
        return ""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]

    def render(line: Sequence[str]) -> str:
        cells = (
            cell.ljust(width) if column == 0 else cell.rjust(width) for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        return "  ".join(cells).rstrip()

    text = [render(line) for line in lines]
    if header:
        text.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(text)


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Names and values, one pair a line, values aligned on the left."""
    width = max((len(name) for name, _ in pairs), default=0)
    return "\n".join(f"{name.ljust(width)}  {value}".rstrip() for name, value in pairs)


@contextlib.contextmanager
def progress(label: str, total: int, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr: yields a function that advances it. Nothing is drawn when stderr is not a terminal."""
    if not shown or not sys.stderr.isatty():
        yield lambda _: None
        return
    with click.progressbar(length=total, label=label, file=sys.stderr) as bar:
        yield bar.update


def printable(text: str) -> str:
    """``text`` for a terminal: control characters, which could move its cursor or do worse, become a replacement mark.

    Manifests come from strangers and a model may write anything; line ends and tabs stay.
    """
    return "".join(char if char in "\n\t" or unicodedata.category(char) != "Cc" else "\N{REPLACEMENT CHARACTER}" for char in text)


def indent(text: str) -> str:
    """``text`` two columns to the right."""
    return "\n".join(f"  {line}" for line in text.splitlines())


def note(text: str) -> None:
    """What is being done, on a line of the terminal that the next note overwrites; nothing in a pipe."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{text}", nl=False, err=True)


def on_terminal() -> bool:
    return sys.stdout.isatty()


def write(text: str, *, colour: str | None = None) -> None:
    """Generated text on stdout, at once and without a line end; on a terminal without control characters, coloured if asked."""
    if on_terminal():
        text = click.style(printable(text), fg=colour) if colour else printable(text)
    sys.stdout.write(text)
    sys.stdout.flush()


def fidelity_facts(fidelity: Fidelity) -> list[tuple[str, str]]:
    """What an export measured against the original."""
    pairs = [("against torch", f"KL {fidelity.kl:.2g} nats, same top token {fidelity.top1:.1%} of {fidelity.rows} rows")]
    if fidelity.perplexity and fidelity.original_perplexity:
        pairs.append(("perplexity", f"{fidelity.perplexity:.4g}, of the original {fidelity.original_perplexity:.4g}"))
    if fidelity.graph_rms is not None and fidelity.rounding_kl is not None:
        kl = f"8-bit activations add a KL of {fidelity.rounding_kl:.2g}"
        pairs.append(("graph alone", f"off by {fidelity.graph_rms:.1g} of the logits' spread with the same weights; {kl}"))
    return pairs


def stats_facts(stats: Stats) -> list[tuple[str, str]]:
    """The statistics of one generation for a person."""
    length = f", draft length {stats.draft_length}" if stats.drafter != "none" else ""
    pairs = [
        ("drafter", f"{stats.drafter}{length}, {stats.exactness}"),
        ("prompt", f"{stats.prompt_tokens} tokens, first token after {stats.time_to_first_token_s * 1000:.0f} ms"),
        ("new", f"{stats.new_tokens} tokens, {stats.decode_tokens_per_s:.1f} tokens/s"),
        ("passes", f"{stats.target_passes}, {stats.tokens_per_pass:.2f} tokens per pass"),
    ]
    if stats.dropped_tokens:
        pairs.append(("dropped", f"{stats.dropped_tokens} tokens behind the first ones, which the target saw no longer"))
    if stats.drafted:
        pairs.append(("accepted", f"{stats.accepted} of {stats.drafted} drafted tokens ({stats.accepted / stats.drafted:.0%})"))
        accepted = stats.accepted_by_position
        shares = [f"{accepted[position] / count:.0%}" for position, count in sorted(stats.drafted_by_position.items())]
        pairs.append(("by position", ", ".join(shares)))
        drafted = {name: counts.total() for name, counts in sorted(stats.drafted_by_drafter.items())}
        by_drafter = [f"{name} {stats.accepted_by_drafter[name].total()} of {count}" for name, count in drafted.items()]
        pairs.append(("by drafter", ", ".join(by_drafter)))
    if stats.from_branches or stats.seeded:
        pairs.append(("branches", f"{stats.from_branches} tokens accepted off the first path, {stats.seeded} drafted from branches"))
    if stats.forced:
        pairs.append(("forced", f"{stats.forced} tokens that the grammar left no choice about"))
    if stats.rechecked:
        pairs.append(("rechecked", f"{stats.rechecked} near-ties"))
    if stats.speculation_off:
        pairs.append(("speculation", f"off: {stats.speculation_off}"))
    pairs += [("given up", step) for step in stats.degraded]
    pairs.append(("memory", memory_text(stats.as_dict())))
    return pairs


def memory_text(data: dict[str, Any]) -> str:
    """Peak and parts of this process's memory, from statistics."""
    peak, private, evictable = (data[name] for name in ("peak_rss_bytes", "private_bytes", "evictable_bytes"))
    predicted = f" (predicted {human_bytes(data['predicted_peak_bytes'])})" if data["predicted_peak_bytes"] else ""
    return f"at most {human_bytes(peak)}{predicted}; now {human_bytes(private)} private, {human_bytes(evictable)} of files"
