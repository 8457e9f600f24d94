"""Options that `run` and `chat` share, and the types of their values."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


class ByteCount(click.ParamType):
    """A number of bytes with an optional unit: 500000000, 500M, 500MB, 1.5GiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?i?)b?", str(value).strip().lower())
        if not match or match[2] not in UNITS or float(match[1]) <= 0:
            self.fail(f"{value!r} is not a size; write it as 500MB or 1.5GiB", param, ctx)
        return int(float(match[1]) * UNITS[match[2]])


class DraftLength(click.ParamType):
    """``auto`` or a number of tokens from 1."""

    name = "auto|K"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        if value == "auto":
            return "auto"
        try:
            length = int(value)
        except ValueError:
            length = 0
        if not 1 <= length <= 1024:
            self.fail(f"{value!r} is neither auto nor a number of tokens from 1 to 1024", param, ctx)
        return length


GENERATION_OPTIONS = (
    click.option("--max-new-tokens", type=click.IntRange(1), default=256, show_default=True, help="Most tokens to write."),
    click.option("--drafter", default="auto", show_default=True, metavar="auto|none|ngram|draft", help="Who proposes tokens."),
    click.option("--draft-length", type=DraftLength(), default="auto", show_default=True, help="Tokens proposed per pass."),
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
    click.option("--memory-budget", type=ByteCount(), metavar="SIZE", help="Most memory to use, as 500MB or 1.5GiB."),
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
