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
    from edgespec.runtime import Chat, Engine, Stats, Stream

COMMANDS = {
    "/help": "shows this",
    "/stats": "shows figures of the last answer",
    "/history": "shows the conversation, your messages numbered",
    "/edit N TEXT": "says TEXT in place of your message N and drops what followed",
    "/undo": "drops your last message and its answer",
    "/drafter NAME [K]": "changes who proposes tokens, and how many",
    "/save FILE": "keeps the conversation with its caches, for --restore",
    "/clear": "forgets the conversation",
    "/exit": "ends",
}
HINT = "/help shows the commands, /exit ends; Ctrl-C stops an answer"


@click.command(short_help="Hold a conversation.")
@click.argument("bundle", type=BUNDLE)
@click.option("--system", help="System message.")
@click.option("--restore", type=click.Path(path_type=Path), metavar="FILE", help="Go on with a conversation that /save kept.")
@with_options(*GENERATION_OPTIONS, *ENGINE_OPTIONS)
@click.option("--show-drafts", is_flag=True, help="Colour accepted draft tokens, on a terminal.")
def chat(bundle: Path, system: str | None, restore: Path | None, show_drafts: bool, **options: Any) -> None:
    """Hold a conversation with BUNDLE. In a pipe every line of stdin is a message.

    Lines that begin with / are commands; /help lists them. Ctrl-C stops an answer and not the program.
    """
    keywords = generation_options(options)
    if system is not None and restore is not None:
        raise click.UsageError("--system has no effect with --restore, which brings its own")
    with open_engine(bundle, options) as engine:
        if engine.chat_template is None:
            raise UsageError(f"{bundle}: has no chat template, so it cannot chat; use edgespec run")
        conversation = Conversation(engine, system, keywords, show_drafts, restore)
        talk(conversation, interactive=sys.stdin.isatty())


class Conversation:
    """A conversation that is written on stdout."""

    def __init__(
        self, engine: Engine, system: str | None, keywords: dict[str, Any], show_drafts: bool, restore: Path | None = None
    ) -> None:
        self._engine = engine
        self._show_drafts = show_drafts
        self.chat: Chat = engine.chat(system, **keywords) if restore is None else engine.restore_chat(restore, **keywords)

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self.chat.messages

    @property
    def drafters(self) -> tuple[str, ...]:
        return self._engine.drafters

    @property
    def stats(self) -> Stats | None:
        return self.chat.stats

    def clear(self) -> None:
        """Forget everything but the system message."""
        self.chat.clear()

    def answer(self, text: str) -> None:
        """Write the answer to ``text`` on stdout as it comes.

        Ctrl-C ends it where it is, and the part that was shown stays in the conversation. A message without an answer
        does not, so that it can be asked again.
        """
        self._write(self.chat.send(text))

    def edit(self, number: int, text: str) -> None:
        """Write the answer to ``text`` in place of the user's message ``number``, from 1."""
        if number < 1:
            raise UsageError(f"/edit {number}: messages are numbered from 1, see /history")
        self._write(self.chat.edit(number - 1, text))

    def use_drafter(self, name: str, length: str = "auto") -> None:
        """Change the drafter of the answers to come."""
        self._engine.check_drafter(name)
        if length != "auto" and not length.isdecimal():
            raise UsageError(f"{length!r} is neither auto nor a number of tokens")
        self.chat.options |= {"drafter": name, "draft_length": length if length == "auto" else int(length)}

    def history(self) -> str:
        """The conversation, with numbers for ``/edit``."""
        lines, number = [], 0
        for message in self.chat.messages:
            number += message["role"] == "user"
            name = f"{number}" if message["role"] == "user" else message["role"]
            lines.append(f"{name}: {message['content']}")
        return "\n".join(lines) or "nothing was said yet"

    def _write(self, pieces: Stream) -> None:
        with contextlib.suppress(KeyboardInterrupt), pieces:
            for piece in pieces:
                accepted = self._show_drafts and bool(piece.drafted) and all(piece.drafted)
                write(piece.text, colour=ACCEPTED_COLOUR if accepted else None)
        write("\n")


def talk(conversation: Conversation, interactive: bool) -> None:
    """Read messages until the end of input or /exit."""
    if interactive:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  Importing it gives input() line editing and history.
        click.echo(HINT, err=True)
    while (line := read_line(interactive)) is not None:
        text = line.strip()
        if text == "/exit":
            return
        try:
            handle(conversation, text)
        except (EdgespecError, OSError) as error:
            if not interactive:
                raise
            hint = "; /clear starts a new conversation" if isinstance(error, CapacityError) else ""
            click.echo(f"{error}{hint}", err=True)


def handle(conversation: Conversation, text: str) -> None:
    """One line of input: a command, or a message to answer."""
    if not text.startswith("/"):
        if text:
            conversation.answer(text)
        return
    name, *words = text.split(maxsplit=1)
    rest = words[0] if words else ""
    reply = {"/stats": show_stats, "/history": Conversation.history, "/help": show_help}.get(name)
    if reply is not None:
        click.echo(reply(conversation), err=True)
    elif name == "/clear":
        conversation.clear()
    elif name == "/undo":
        conversation.chat.undo()
    elif name == "/save":
        conversation.chat.save(Path(need(rest, "/save FILE")).expanduser())
        click.echo(f"saved; go on with --restore {rest}", err=True)
    elif name == "/drafter":
        conversation.use_drafter(*need(rest, f"/drafter {'|'.join(conversation.drafters)} [K]").split()[:2])
    elif name == "/edit":
        number, _, message = need(rest, "/edit N TEXT").partition(" ")
        if not number.isdecimal() or not message.strip():
            raise UsageError("/edit N TEXT: say which message, see /history, and what it should be")
        conversation.edit(int(number), message.strip())
    else:
        click.echo(f"no command {name!r}; {HINT}", err=True)


def need(rest: str, usage: str) -> str:
    """What follows a command.

    Raises:
        UsageError: nothing does.
    """
    if not rest:
        raise UsageError(f"usage: {usage}")
    return rest


def show_stats(conversation: Conversation) -> str:
    return facts(stats_facts(conversation.stats)) if conversation.stats else "no answer yet"


def show_help(_conversation: Conversation) -> str:
    return facts(list(COMMANDS.items()))


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
