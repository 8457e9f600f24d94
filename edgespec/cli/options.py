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


def numbers(wrong: str, count: int | None = None) -> Callable[[click.Context, click.Parameter, str | None], tuple[int, ...] | None]:
    """A callback for whole numbers between commas, ``count`` of them if that is given; which ones make sense is for others to check.
    ``wrong`` ends the message about a value that is none."""

    def parse(_context: click.Context, _param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
        if value is None:
            return None
        try:
            found = tuple(int(number) for number in value.split(","))
        except ValueError:
            found = ()
        if not found or len(found) != (count or len(found)):
            raise click.BadParameter(f"{value!r} {wrong}")
        return found

    return parse


def logit_bias(_context: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[int, float]:
    """``ID=NUMBER`` as a mapping."""
    bias = {}
    for value in values:
        token, _, number = value.partition("=")
        try:
            bias[int(token)] = float(number)
        except ValueError as error:
            raise click.BadParameter(f"{value!r} is not a token id and a number, such as 42=-3.5") from error
    return bias


def provider_options(_context: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """``PROVIDER.KEY=VALUE`` as options by provider."""
    options: dict[str, dict[str, str]] = {}
    for value in values:
        name, equals, setting = value.partition("=")
        provider, dot, key = name.partition(".")
        if not (equals and dot and provider and key):
            raise click.BadParameter(f"{value!r} is not PROVIDER.KEY=VALUE, such as qnn.htp_performance_mode=burst")
        options.setdefault(provider, {})[key] = setting
    return options


class TextFile(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A file whose text is the value."""

    name = "file"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return Path(value).read_text(encoding="utf-8")
        except OSError as error:
            self.fail(f"{value}: {error.strerror}", param, ctx)
        except UnicodeDecodeError:
            self.fail(f"{value}: is not a text in UTF-8", param, ctx)


TEXT_FILE = TextFile()
GENERATION_OPTIONS = (
    click.option("--max-new-tokens", type=click.IntRange(1), default=256, show_default=True, help="Most tokens to write."),
    click.option(
        "--drafter",
        default="auto",
        show_default=True,
        metavar="NAME[,NAME]",
        help="Who proposes tokens: auto, none, or of ngram, draft, universal, tree, lookahead, medusa, eagle and those of other packages "
        "one, or several in order.",
    ),
    click.option(
        "--draft-length", metavar="auto|K", callback=draft_length, default="auto", show_default=True, help="Tokens proposed per pass."
    ),
    click.option(
        "--lookahead",
        metavar="W,N,G",
        callback=numbers("is not three numbers with commas between, such as 4,3,2", 3),
        help="Window, n-gram size and guesses of the lookahead drafter.",
    ),
    click.option(
        "--exactness",
        type=click.Choice(["exact", "fast"]),
        default="exact",
        show_default=True,
        help="exact: the very text of plain decoding. fast: near-ties may fall the other way.",
    ),
    click.option("--endless", is_flag=True, help="Go on when the context is full, seeing the first tokens and the last ones."),
    click.option("--sample", "do_sample", is_flag=True, help="Draw tokens at random instead of taking the most likely one."),
    click.option("--temperature", type=float, help="Of --sample: above 1 is wilder, below 1 tamer."),
    click.option("--top-k", type=int, help="Of --sample: draw from the K most likely tokens only."),
    click.option("--top-p", type=float, help="Of --sample: draw from the most likely tokens that hold this share."),
    click.option("--min-p", type=float, help="Of --sample: draw from tokens with this share of the most likely one's probability."),
    click.option("--typical-p", type=float, help="Of --sample: draw from tokens of about the expected information, up to this share."),
    click.option("--seed", type=int, help="Of --sample: the same seed draws the same text."),
    click.option(
        "--acceptance",
        type=click.Choice(["match", "ratio", "typical"]),
        help="Of --sample: match draws the same text with every drafter, ratio accepts more drafts; match with a --seed, else ratio. "
        "typical accepts still more and is not lossless.",
    ),
    click.option("--repetition-penalty", type=float, help="Above 1: tokens of prompt and text get less likely."),
    click.option("--presence-penalty", type=float, help="Subtracted from the score of each token that the answer has."),
    click.option("--frequency-penalty", type=float, help="Subtracted for each time that the answer has the token."),
    click.option("--no-repeat-ngram", "no_repeat_ngram_size", type=int, metavar="N", help="No N tokens in a row twice."),
    click.option("--min-new-tokens", type=int, help="Fewest tokens before the model may end the text."),
    click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; may be given several times."),
    click.option("--ban-token", "banned_tokens", type=int, multiple=True, metavar="ID", help="Never write this token."),
    click.option("--logit-bias", type=str, multiple=True, callback=logit_bias, metavar="ID=NUMBER", help="Added to a token's score."),
    click.option("--json-schema", type=TEXT_FILE, metavar="FILE", help="The answer is JSON that this schema allows."),
    click.option("--regex", metavar="TEXT", help="The whole answer matches this expression."),
    click.option("--grammar", type=TEXT_FILE, metavar="FILE", help="The answer follows this grammar, in llguidance's dialect of Lark."),
)
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p", "seed", "acceptance")
OTHERS = (
    "lookahead", "repetition_penalty", "presence_penalty", "frequency_penalty", "no_repeat_ngram_size", "min_new_tokens", "stop",
    "banned_tokens", "logit_bias", "json_schema", "regex", "grammar",
)  # fmt: skip
ROOM_OPTIONS = (
    click.option(
        "--kv",
        metavar="TYPE[,TYPE]",
        help="KV caches of float32, int8 or int4, as the bundle has them; with float32,int8 a budget may take the latter.",
    ),
    click.option("--pack-cache/--no-pack-cache", default=True, help="Keep packed weights as files in the cache folder, and map them."),
    click.option("--context", type=click.IntRange(1), help="Tokens of prompt and text to have room for; all that the bundle has."),
    click.option("--draft-window", type=click.IntRange(1), help="Tokens that a draft model sees: the end of a longer text."),
)
MEMORY_OPTIONS = (
    click.option("--memory-budget", metavar="SIZE", help="Most memory that the process may take, as 500MB or 1.5GiB."),
    *ROOM_OPTIONS,
)
PROVIDER_OPTIONS = (
    click.option(
        "--providers",
        metavar="NAME",
        help="What to run on: cpu, cuda, coreml, qnn, openvino, webgpu, dml or xnnpack; also by model: target=cuda,draft=cpu.",
    ),
    click.option(
        "--provider-option",
        "provider_options",
        multiple=True,
        callback=provider_options,
        metavar="PROVIDER.KEY=VALUE",
        help="An option of ONNX Runtime for a provider, such as qnn.htp_performance_mode=burst.",
    ),
    click.option("--profile", metavar="cpu|cuda|webgpu|npu", help="Which of the bundle's graphs; what the provider can run unless given."),
    click.option("--strict-providers", is_flag=True, help="Fail if a part of a graph would run on another provider than asked."),
)
NGRAM_CORPUS = click.option(
    "--ngram-corpus", metavar="FILE", help="Text in which the n-gram drafter looks for continuations, besides prompt and answer."
)
ENGINE_OPTIONS = (
    click.option("--threads", metavar="N", help="Threads of a pass; also by model: target=4,draft=1."),
    *PROVIDER_OPTIONS,
    *MEMORY_OPTIONS,
    NGRAM_CORPUS,
)
ENGINE_KEYWORDS = (
    "memory_budget", "context", "draft_window", "kv", "pack_cache", "threads", "providers", "provider_options", "strict_providers",
    "profile", "ngram_corpus",
)  # fmt: skip


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
    given = [name for name in SAMPLING if options[name] is not None]
    if given and not options["do_sample"]:
        raise click.UsageError(f"--{given[0].replace('_', '-')} has no effect without --sample")
    given += [name for name in OTHERS if options[name] not in (None, (), {})]
    names = ("max_new_tokens", "drafter", "draft_length", "exactness", "do_sample", "endless", *given)
    return {name: options[name] for name in names}


def open_engine(bundle: Path, options: dict[str, Any]) -> Engine:
    """Load ``bundle`` with the engine options among a command's ``options``."""
    from edgespec.runtime import load

    return load(bundle, **{name: options[name] for name in ENGINE_KEYWORDS})
