"""Options that `run` and `chat` share, and the types of their values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from edgespec.runtime import Engine

F = TypeVar("F", bound=Callable[..., Any])


def draft_length(_context: click.Context, _param: click.Parameter, value: str) -> int | str:
    """``auto`` or a number of tokens from 1; the bundle's own limit is the runtime's to check."""
    if value == "auto":
        return value
    if not value.isdecimal() or not 1 <= int(value) <= 1024:
        raise click.BadParameter(f"{value!r} is neither auto nor a number of tokens from 1 to 1024")
    return int(value)


GENERATION_OPTIONS = (
    click.option("--max-new-tokens", type=click.IntRange(1), default=256, show_default=True, help="Most tokens to write."),
    click.option("--drafter", default="auto", show_default=True, metavar="auto|none|ngram|draft", help="Who proposes tokens."),
    click.option(
        "--draft-length", metavar="auto|K", callback=draft_length, default="auto", show_default=True, help="Tokens proposed per pass."
    ),
    click.option(
        "--exactness",
        type=click.Choice(["exact", "fast"]),
        default="exact",
        show_default=True,
        help="exact: the very text of plain decoding. fast: near-ties may fall the other way.",
    ),
    click.option("--sample", "do_sample", is_flag=True, help="Draw tokens at random instead of taking the most likely one."),
    click.option("--temperature", type=float, help="Of --sample: above 1 is wilder, below 1 tamer."),
    click.option("--top-k", type=int, help="Of --sample: draw from the K most likely tokens only."),
    click.option("--top-p", type=float, help="Of --sample: draw from the most likely tokens that hold this share."),
    click.option("--seed", type=int, help="Of --sample: the same seed draws the same text."),
)
ENGINE_OPTIONS = (
    click.option("--threads", type=click.IntRange(1), help="Threads of ONNX Runtime."),
    click.option("--memory-budget", metavar="SIZE", help="Most memory to use, as 500MB or 1.5GiB."),
)


def with_options(*options: Callable[[F], F]) -> Callable[[F], F]:
    """A decorator that adds ``options`` to a command, in the order given."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def generation_options(options: dict[str, Any]) -> dict[str, Any]:
    """The keywords of ``Engine.stream`` among a command's ``options``, without those that were not given.

    Raises:
        click.UsageError: an option of sampling without ``--sample``, which would have no effect.
    """
    sampling = ("temperature", "top_k", "top_p", "seed")
    given = [name for name in sampling if options[name] is not None]
    if given and not options["do_sample"]:
        raise click.UsageError(f"--{given[0].replace('_', '-')} has no effect without --sample")
    names = ("max_new_tokens", "drafter", "draft_length", "exactness", "do_sample", *given)
    return {name: options[name] for name in names}


def open_engine(bundle: Path, options: dict[str, Any]) -> Engine:
    """Load ``bundle`` with the engine options among a command's ``options``."""
    from edgespec.runtime import load

    return load(bundle, memory_budget=options["memory_budget"], threads=options["threads"])
