"""Conversations: messages, their tokens, and the cache rows that the next turn finds again.

    chat = engine.chat(system="Be brief.")
    for piece in chat.send("Name a river."):
        print(piece.text, end="", flush=True)
    print(chat.send("And a longer one?").result().text)
    chat.edit(0, "Name a mountain.").result()      the first question again, in other words; what followed is dropped

A turn computes only the tokens that are new. Prompts are made from the token ids that the model wrote, not from its text
encoded anew, which could cut words into other tokens. Several conversations can share an engine, one at a time: rows of
those that wait are set aside while memory allows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec.errors import UsageError
from edgespec.runtime.options import GenerationOptions
from edgespec.runtime.stats import Stats
from edgespec.runtime.stream import Piece, Stream
from edgespec.runtime.text.chat_template import Message, check_message

if TYPE_CHECKING:
    from edgespec.runtime.engine import Engine


@dataclasses.dataclass(frozen=True)
class Spoken:
    """Text that begins the next prompt, and the ids that the model has read or written for it."""

    text: str
    ids: tuple[int, ...]


class Chat:
    """See the module. Made by ``Engine.chat`` and ``Engine.restore_chat``."""

    def __init__(self, engine: Engine, messages: Sequence[Message], options: dict[str, Any]) -> None:
        self.engine = engine
        self.options = options
        """Options of every turn; those given to a turn come on top."""
        self.stats: Stats | None = None
        """Of the last turn."""
        self._messages = [own_message(index, message) for index, message in enumerate(messages)]
        self._spoken: list[Spoken] = []
        """The conversation as it stood after each answer, as far as it still stands."""
        if engine.chat_template is None:
            raise UsageError("this bundle has no chat template, so it cannot chat; use generate")
        GenerationOptions.of(**options)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """A copy of the conversation so far."""
        return [dict(message) for message in self._messages]

    def send(self, text: str, **options: Any) -> Stream:
        """Say ``text`` and stream the answer.

        Both join the conversation as the answer ends. An answer that was stopped or closed joins as far as it
        came; where none of it did, the conversation stays as it was.

        Raises:
            UsageError: the text is not one, an option is out of range, or another generation is running.
            CapacityError: the conversation no longer fits into the cache.
        """
        return self._answer(self._messages, text, options)

    def edit(self, turn: int, text: str, **options: Any) -> Stream:
        """Say ``text`` in place of the user's message number ``turn`` (from 0; -1 is the last). Later messages are dropped."""
        places = [index for index, message in enumerate(self._messages) if message["role"] == "user"]
        if not -len(places) <= turn < len(places):
            raise UsageError(f"turn {turn}: the conversation has {len(places)} messages of the user")
        return self._answer(self._messages[: places[turn]], text, options)

    def undo(self) -> None:
        """Drop the user's last message and what came after it."""
        places = [index for index, message in enumerate(self._messages) if message["role"] == "user"]
        if not places:
            raise UsageError("nothing was said yet")
        del self._messages[places[-1] :]

    def clear(self) -> None:
        """Forget everything but the system message."""
        self._messages = [message for message in self._messages[:1] if message["role"] == "system"]

    def save(self, path: str | Path) -> None:
        """Write the conversation and its cache rows, of target and draft, to a file."""
        spoken = [dataclasses.asdict(item) for item in self._spoken]
        self.engine._save_chat(self, Path(path), {"messages": self._messages, "spoken": spoken})

    def _restore(self, state: dict[str, Any]) -> None:
        self._messages = [own_message(index, message) for index, message in enumerate(state["messages"])]
        self._spoken = [Spoken(str(item["text"]), tuple(self.engine.tokenizer.check(item["ids"]))) for item in state["spoken"]]

    def _answer(self, before: Sequence[dict[str, Any]], text: str, options: dict[str, Any]) -> Stream:
        messages = [*before, own_message(len(before), {"role": "user", "content": text})]
        template = self.engine.chat_template
        assert template is not None
        prompt = template.render(messages)
        ids = self._encode(prompt)
        inner = self.engine._start(ids, GenerationOptions.of(**{**self.options, **options}), Stats(), owner=self)
        self.stats = inner.stats
        return Stream(self._record(inner, messages, prompt, ids), inner.stopped, inner.stats)

    def _record(self, inner: Stream, messages: list[dict[str, Any]], prompt: str, ids: list[int]) -> Generator[Piece]:
        """The pieces of ``inner``; when they end, however they do, what was said is in the conversation."""
        shown: list[str] = []
        tokens: list[int] = []
        reason = None
        try:
            for piece in inner:
                shown.append(piece.text)
                tokens.extend(piece.token_ids)
                reason = piece.finish_reason
                yield piece
        finally:
            inner.close()
            answer = "".join(shown)
            if answer or reason not in (None, "stopped"):
                self._messages = [*messages, {"role": "assistant", "content": answer}]
                self._spoken = [item for item in self._spoken if prompt.startswith(item.text)]
                if reason != "stop":  # Of a stop text nothing is shown, but its tokens were written: such an answer is encoded anew.
                    ended = bool(tokens) and tokens[-1] in self.engine.manifest.tokenizer.eos_ids
                    self._spoken.append(Spoken(prompt + answer, (*ids, *tokens[: len(tokens) - ended])))

    def _encode(self, prompt: str) -> list[int]:
        """Ids of ``prompt``: where it begins with what was spoken, the very ids of that."""
        encode = self.engine.tokenizer.encode
        ids = encode(prompt, prefix=False)
        for spoken in reversed(self._spoken):
            if prompt.startswith(spoken.text):
                rest = encode(prompt[len(spoken.text) :], prefix=False)
                # Only where a token ends there anyway, as it does before the mark that ends a message.
                if rest and ids[-len(rest) :] == rest:
                    return [*spoken.ids, *rest]
        return ids


def own_message(index: int, message: Message) -> dict[str, Any]:
    """``message`` as a dict of its own.

    Raises:
        UsageError: no role that is known, no content, or a user who says nothing.
    """
    check_message(index, message)
    role, content = message["role"], message["content"]
    if role == "user" and not isinstance(content, (str, list)):
        raise UsageError(f"messages[{index}]: expected a text, found {content!r}")
    if role == "user" and not content:
        raise UsageError(f"messages[{index}]: the message is empty")
    return dict(message)
