"""``edgespec chat``: a conversation in the terminal, or over a pipe with one message a line."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgespec.cli.bundle_argument import BUNDLE
from edgespec.cli.options import ENGINE_OPTIONS, GENERATION_OPTIONS, generation_options, open_engine, with_options
from edgespec.cli.output import facts, stats_facts, write
from edgespec.cli.run import ACCEPTED_COLOUR
from edgespec.errors import CapacityError, EdgespecError, UsageError

if TYPE_CHECKING:
    from edgespec.runtime import Engine, Stats

HELP = "/exit ends, /clear forgets the conversation, /stats shows figures of the last answer; Ctrl-C stops an answer"


@click.command(short_help="Hold a conversation.")
@click.argument("bundle", type=BUNDLE)
@click.option("--system", help="System message.")
@with_options(*GENERATION_OPTIONS, *ENGINE_OPTIONS)
@click.option("--show-drafts", is_flag=True, help="Colour accepted draft tokens, on a terminal.")
def chat(bundle: Path, system: str | None, show_drafts: bool, **options: Any) -> None:
    """Hold a conversation with BUNDLE. In a pipe every line of stdin is a message.

    /exit ends, /clear forgets the conversation, /stats shows figures of the last answer, Ctrl-C stops an answer.
    """
    keywords = generation_options(options)
    with open_engine(bundle, options) as engine:
        if engine.chat_template is None:
            raise UsageError(f"{bundle}: has no chat template, so it cannot chat; use edgespec run")
        conversation = Conversation(engine, system, keywords, show_drafts)
        talk(conversation, interactive=sys.stdin.isatty())


class Conversation:
    """The messages so far, and how to get an answer to one more."""

    def __init__(self, engine: Engine, system: str | None, keywords: dict[str, Any], show_drafts: bool) -> None:
        self._engine = engine
        self._system = system
        self._keywords = keywords
        self._show_drafts = show_drafts
        self.stats: Stats | None = None
        self.clear()

    def clear(self) -> None:
        """Forget everything but the system message."""
        self.messages = [{"role": "system", "content": self._system}] if self._system else []

    def answer(self, text: str) -> None:
        """Write the answer to ``text`` on stdout as it comes.

        Ctrl-C ends it where it is, and the part that was shown stays in the conversation. A message without an answer
        does not, so that it can be asked again.
        """
        from edgespec.runtime import Stats

        self.stats = Stats()
        messages = [*self.messages, {"role": "user", "content": text}]
        shown: list[str] = []
        pieces = self._engine.stream(messages, stats=self.stats, **self._keywords)
        with contextlib.suppress(KeyboardInterrupt), contextlib.closing(pieces):
            for piece in pieces:
                accepted = self._show_drafts and bool(piece.drafted) and all(piece.drafted)
                shown.append(piece.text)
                write(piece.text, colour=ACCEPTED_COLOUR if accepted else None)
        write("\n")
        if shown:
            self.messages = [*messages, {"role": "assistant", "content": "".join(shown)}]


def talk(conversation: Conversation, interactive: bool) -> None:
    """Read messages until the end of input or /exit."""
    if interactive:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  Importing it gives input() line editing and history.
        click.echo(HELP, err=True)
    while (line := read_line(interactive)) is not None:
        text = line.strip()
        if text == "/exit":
            return
        try:
            handle(conversation, text)
        except EdgespecError as error:
            if not interactive:
                raise
            hint = "; /clear starts a new conversation" if isinstance(error, CapacityError) else ""
            click.echo(f"{error}{hint}", err=True)


def handle(conversation: Conversation, text: str) -> None:
    """One line of input: a command, or a message to answer."""
    if text == "/clear":
        conversation.clear()
    elif text == "/stats":
        click.echo(facts(stats_facts(conversation.stats)) if conversation.stats else "no answer yet", err=True)
    elif text.startswith("/"):
        click.echo(HELP if text == "/help" else f"no command {text!r}; {HELP}", err=True)
    elif text:
        conversation.answer(text)


def read_line(interactive: bool) -> str | None:
    """The next line without its end, None at the end of input. Ctrl-C at the prompt drops what was typed."""
    if not interactive:
        try:
            line = sys.stdin.readline()
        except UnicodeDecodeError as error:
            raise UsageError("a message on stdin is not UTF-8") from error
        return line.rstrip("\r\n") if line else None
    while True:
        try:
            return input("> ")
        except EOFError:
            click.echo(err=True)
            return None
        except KeyboardInterrupt:
            click.echo("\n/exit or Ctrl-D ends", err=True)
