"""``edgespec run``: one prompt, one answer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgespec.cli.bundle_argument import BUNDLE
from edgespec.cli.memory_trace import check_picture, draw, tracing
from edgespec.cli.options import ENGINE_OPTIONS, GENERATION_OPTIONS, generation_options, open_engine, with_options
from edgespec.cli.output import facts, print_json, stats_facts, write
from edgespec.errors import UsageError

if TYPE_CHECKING:
    from edgespec.runtime import Engine
    from edgespec.runtime.text.prompt import Prompt

ACCEPTED_COLOUR = "green"


@click.command(short_help="Answer one prompt.")
@click.argument("bundle", type=BUNDLE)
@click.argument("prompt", required=False)
@click.option("--chat/--no-chat", default=None, help="Wrap the prompt in the chat template; if there is one, unless told otherwise.")
@click.option("--system", help="System message, of a chat.")
@with_options(*GENERATION_OPTIONS, *ENGINE_OPTIONS)
@click.option("--stats", "show_stats", is_flag=True, help="Print a short table of statistics on stderr.")
@click.option("--memory-trace", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.svg", help="Draw what was resident when.")
@click.option("--show-drafts", is_flag=True, help="Colour accepted draft tokens, on a terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print text, token ids and statistics as one JSON object.")
def run(bundle: Path, prompt: str | None, chat: bool | None, system: str | None, **options: Any) -> None:
    """Answer PROMPT with BUNDLE; without PROMPT, or for `-`, it is read from stdin."""
    keywords = generation_options(options)
    if options["as_json"]:
        for option, given in (("--show-drafts", options["show_drafts"]), ("--stats", options["show_stats"])):
            if given:
                raise click.UsageError(f"{option} has no effect with --json")
    request = make_prompt(read_prompt(prompt), system, chat)
    picture = options["memory_trace"]
    check_picture(picture)
    with tracing(picture) as trace, open_engine(bundle, options) as engine:
        if trace:
            trace.mark("loaded")
        if options["as_json"]:
            answer_json(engine, request, {"chat": chat, **keywords})
        else:
            answer_text(engine, request, {"chat": chat, **keywords}, options["show_drafts"], options["show_stats"])
        if trace:
            trace.mark("answered")
    if picture and trace:
        draw(picture, trace, engine.plan)


def read_prompt(prompt: str | None) -> str:
    """The prompt's text, from stdin where none is given. Of piped text the last line end is dropped.

    Raises:
        UsageError: there is nothing to read, or it is empty or not UTF-8.
    """
    if prompt is None and sys.stdin.isatty():
        raise UsageError("no prompt: give one in quotes, pipe one in, or write - to type it and end with Ctrl-D")
    if prompt is None or prompt == "-":
        try:
            prompt = sys.stdin.buffer.read().decode("utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(f"the prompt on stdin is not UTF-8: byte {error.start} is wrong") from error
        prompt = prompt.removesuffix("\n").removesuffix("\r")
    if not prompt:
        raise UsageError("the prompt is empty")
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(f"the prompt is not UTF-8: character {error.start} is half of a pair or a stray byte") from error
    return prompt


def make_prompt(text: str, system: str | None, chat: bool | None) -> Prompt:
    """``text`` alone, or messages where a system message goes with it."""
    if system is None:
        return text
    if chat is False:
        raise click.UsageError("--system needs a chat, and --no-chat was given")
    return [{"role": "system", "content": system}, {"role": "user", "content": text}]


def answer_json(engine: Engine, prompt: Prompt, keywords: dict[str, Any]) -> None:
    """The whole answer and its statistics, in one object."""
    result = engine.generate(prompt, **keywords)
    head = {"text": result.text, "token_ids": list(result.token_ids), "finish_reason": result.finish_reason}
    print_json({**head, **result.stats.as_dict()}, indent=None)


def answer_text(engine: Engine, prompt: Prompt, keywords: dict[str, Any], show_drafts: bool, show_stats: bool) -> None:
    """The answer as it is written, and then a table on stderr if asked for."""
    from edgespec.runtime import Stats

    stats = Stats()
    ended = True
    try:
        for piece in engine.stream(prompt, stats=stats, **keywords):
            accepted = show_drafts and bool(piece.drafted) and all(piece.drafted)
            write(piece.text, colour=ACCEPTED_COLOUR if accepted else None)
            ended = piece.text.endswith("\n") if piece.text else ended
    finally:
        # An interrupted answer too leaves the shell's prompt on a line of its own.
        if not ended:
            write("\n")
    if show_stats:
        click.echo(facts(stats_facts(stats)), err=True)
