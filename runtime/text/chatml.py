"""ChatML without a template engine: what its template does, where it is one of the usual spellings and jinja2 is missing.

    <|im_start|>user
    Hello<|im_end|>
    <|im_start|>assistant

A template is recognised as a whole or not at all, so that no prompt is ever rendered otherwise than jinja2 renders it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any


def _tag(words: str) -> str:
    """A pattern for ``{% words %}`` with any spacing."""
    return r"\{%-?\s*" + words.replace(" ", r"\s+") + r"\s*-?%\}"


def _field(name: str) -> str:
    return rf"(?:message\.{name}|message\[(?:'{name}'|\"{name}\")\])"


def _shown(*parts: str) -> str:
    """A pattern for ``{{ part + part }}`` with any spacing."""
    return r"\{\{\s*" + r"\s*\+\s*".join(parts) + r"\s*\}\}"


def _text(literal: str) -> str:
    """A pattern for a string literal in either quotes."""
    return rf"(?:'{literal}'|\"{literal}\")"


# A line end between two tags is dropped (trim_blocks), and so is the indentation of a tag (lstrip_blocks).
_BETWEEN = r"(?:\n[ \t]*)?"
_NEWLINE = r"(?:\\n|\n)"  # spelled or as it is, which is the same within a literal
_END = rf"(?:{_text(re.escape('<|im_end|>') + _NEWLINE)}|{_text(re.escape('<|im_end|>'))}\s*\+\s*{_text(_NEWLINE)})"
_NO_SYSTEM = r"if loop\.first and messages\[0\]\[.role.\] != .system."
_DEFAULT = r"\{\{\s*(['\"])<\|im_start\|>system(?:\\n|\n)(?P<system>[^'\"\\]*)<\|im_end\|>(?:\\n|\n)\1\s*\}\}"
_TEMPLATE = re.compile(
    _tag("for message in messages")
    + rf"(?:{_BETWEEN}{_tag(_NO_SYSTEM)}{_DEFAULT}{_tag('endif')})?{_BETWEEN}"
    + _shown(
        rf"(?:{_text(re.escape('<|im_start|>'))}\s*\+\s*{_field('role')}\s*\+\s*{_text(_NEWLINE)})",
        rf"{_field('content')}(?P<trim>\s*\|\s*trim)?",
        _END,
    )
    + _tag("endfor")
    + _BETWEEN
    + rf"(?:{_tag('if add_generation_prompt')}{_shown(_text(re.escape('<|im_start|>') + 'assistant' + _NEWLINE))}{_tag('endif')})"
    + r"\n?"  # the last line end of a template is dropped
)


class ChatMl:
    """Renders messages as ChatML; ``system`` is said where a conversation begins without a system message."""

    def __init__(self, system: str | None, trim: bool) -> None:
        self._system = system
        self._trim = trim

    @classmethod
    def recognise(cls, source: str) -> ChatMl | None:
        """What the Jinja template ``source`` does, None where it is not known to be ChatML."""
        found = _TEMPLATE.fullmatch(source)
        return cls(found["system"], found["trim"] is not None) if found else None

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt for the assistant's next message.

        Raises:
            TypeError: a content is not a text.
        """
        parts = []
        if self._system is not None and messages[0]["role"] != "system":
            parts.append(f"<|im_start|>system\n{self._system}<|im_end|>\n")
        for message in messages:
            content = message["content"]
            if not isinstance(content, str):
                raise TypeError(f"content {content!r} is not a text")
            parts.append(f"<|im_start|>{message['role']}\n{content.strip() if self._trim else content}<|im_end|>\n")
        return "".join(parts) + "<|im_start|>assistant\n"
