"""The protocol between page and service: JSON objects with a ``type``.

Commands, from the page:

    {"type": "hello"}                                the page is there: send the state
    {"type": "send", "text": ...}                    say something
    {"type": "stop"}                                 end what is running
    {"type": "clear"}                                forget the conversation
    {"type": "compare", "text": ...}                 one prompt without and with speculation
    {"type": "settings", "values": {...}}            fields of Settings; some reload the model
    {"type": "open", "name": ...}                    load another of the bundles that are there
    {"type": "import"}                               pick a folder (the app's shell takes this one)

Events, to the page:

    {"type": "state", ...}                           everything that there is to show, after hello and whenever it changes
    {"type": "loading", "text": ...}                 what takes a while
    {"type": "started", "arm": ...}                  an answer begins; arm is "chat", "plain" or "speculative"
    {"type": "piece", "arm": ..., "text": ..., "accepted": ...}    text, and whether its tokens were drafted and accepted
    {"type": "figures", "arm": ..., ...}             of the answer so far
    {"type": "finished", "arm": ..., "reason": ..., ...}           the answer ends, with its figures
    {"type": "compared", "equal": ..., "plain": ..., "speculative": ...}
    {"type": "memory", "used": ..., "peak": ..., "budget": ...}    bytes; budget is null without one
    {"type": "progress", "file": ..., "done": ..., "total": ...}   of an import, in bytes
    {"type": "notice", "text": ...}                  something to know
    {"type": "error", "text": ...}                   one sentence for a person; details are in the log
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from edgespec.errors import UsageError
from edgespec.runtime.memory.size import parse_size

Event = dict[str, Any]
MOST_BYTES = 2**20  # of a command
MOST_TEXT = 100_000  # characters of a message
DEFAULT_TOKENS = 256


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the page lets a person choose.

    Raises:
        UsageError: a value of the wrong type or out of range.
    """

    memory_budget: str = ""
    """Such as "500MB"; empty for no limit."""
    threads: int = 0
    """0 for as many as there are cores."""
    max_new_tokens: int = DEFAULT_TOKENS
    temperature: float = 0.0
    """0 takes the most likely token."""
    drafter: str = "auto"
    draft_length: int = 0
    """Tokens drafted per pass; 0 for what pays on this device."""

    def __post_init__(self) -> None:
        if not isinstance(self.memory_budget, str):
            raise UsageError("memory budget: expected a size such as 500MB, or nothing")
        if self.memory_budget.strip():
            parse_size(self.memory_budget)
        for name, least, most in (("threads", 0, 64), ("max_new_tokens", 1, 100_000), ("draft_length", 0, 64)):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise UsageError(f"{name.replace('_', ' ')}: expected a number from {least} to {most}")
        if type(self.temperature) not in (int, float) or not 0 <= self.temperature <= 5:
            raise UsageError("temperature: expected a number from 0 to 5")
        if not isinstance(self.drafter, str) or not self.drafter:
            raise UsageError("drafter: expected a name")

    def changed(self, values: object) -> Settings:
        """These settings with ``values`` on top."""
        names = {field.name for field in dataclasses.fields(self)}
        if not isinstance(values, Mapping) or not set(values) <= names:
            raise UsageError(f"settings: expected some of {', '.join(sorted(names))}")
        return dataclasses.replace(self, **values)

    @property
    def budget(self) -> str | None:
        """For ``edgespec.load``."""
        return self.memory_budget.strip() or None

    def reloads(self, other: Settings) -> bool:
        """Whether going to ``other`` needs the model to be loaded again."""
        return (self.budget, self.threads) != (other.budget, other.threads)

    def generation(self) -> dict[str, Any]:
        """Options of a generation."""
        sampling = {"do_sample": True, "temperature": float(self.temperature)} if self.temperature else {}
        length = {"draft_length": self.draft_length} if self.draft_length else {}
        return {"max_new_tokens": self.max_new_tokens, "drafter": self.drafter, **length, **sampling}


def parse_command(text: str | bytes) -> dict[str, Any]:
    """A command from its JSON.

    Raises:
        UsageError: it is none.
    """
    if len(text) > MOST_BYTES:
        raise UsageError("a command is too long")
    try:
        command = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError("a command is not JSON") from error
    if not isinstance(command, dict) or not isinstance(command.get("type"), str):
        raise UsageError("a command is no object with a type")
    return command


def text_of(command: Mapping[str, Any]) -> str:
    """The text that a command brings.

    Raises:
        UsageError: there is none, or it is too long or not Unicode.
    """
    text = command.get("text")
    if not isinstance(text, str) or not text.strip():
        raise UsageError("Type a message first.")
    if len(text) > MOST_TEXT:
        raise UsageError(f"The message is longer than {MOST_TEXT} characters.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError("The message holds half a character.") from error
    return text
