"""Chat templates: Jinja texts that turn messages into a prompt. They come with the checkpoint, so they run in a sandbox.

The environment is the one that transformers gives its templates: block trimming, loop controls, ``raise_exception``,
``strftime_now``, a ``tojson`` that does not escape HTML, the tag ``generation``, and no tools and documents. Without jinja2 there is
ChatML alone (:mod:`edgespec.runtime.text.chatml`).
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from edgespec.errors import BundleError, UsageError
from edgespec.manifest import TokenizerSpec
from edgespec.runtime.text.chatml import ChatMl

Message = Mapping[str, Any]
ROLES = ("system", "developer", "user", "assistant", "tool")


class ChatTemplate:
    """The compiled template of a bundle."""

    def __init__(self, bundle: Path, spec: TokenizerSpec) -> None:
        self._path = bundle / (spec.chat_template or "")
        self._tokens = {"bos_token": spec.bos_token or "", "eos_token": spec.eos_token or ""}
        try:
            source = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BundleError(f"{self._path}: not a chat template that can be read: {error}") from error
        self._render = self._compile(source)

    def _compile(self, source: str) -> Callable[[Sequence[Message]], str]:
        """What turns messages into a prompt."""
        try:
            import jinja2.sandbox
        except ImportError as error:
            chatml = ChatMl.recognise(source)
            if chatml is None:
                raise BundleError(f"{self._path}: a chat template other than plain ChatML needs jinja2: pip install jinja2") from error
            return chatml.render
        from edgespec.runtime.text.generation_tag import GenerationTag

        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationTag]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
        try:
            template = environment.from_string(source)
        except Exception as error:  # jinja2 compiles it to Python, which may refuse it, too
            raise BundleError(f"{self._path}: not a chat template that can be read: {error}") from error

        def render(messages: Sequence[Message]) -> str:
            given = {"messages": [dict(message) for message in messages], "tools": None, "documents": None, "add_generation_prompt": True}
            return template.render(**given, **self._tokens)

        return render

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt for the assistant's next message.

        Raises:
            UsageError: no messages, a message without role and content or with a role that there is not, or one that the
                template refuses.
        """
        if not messages:
            raise UsageError("no messages: give at least one, such as {'role': 'user', 'content': 'Hello'}")
        for index, message in enumerate(messages):
            check_message(index, message)
        try:
            return self._render(messages)
        except _Refused as error:
            raise UsageError(f"the chat template refuses these messages: {error}") from error
        except Exception as error:  # a template can fail in any way that Python can
            raise UsageError(f"{self._path}: the chat template fails on these messages: {type(error).__name__}: {error}") from error


def check_message(index: int, message: Message) -> None:
    """Whether ``message``, the one at ``index``, is one. Many templates pass over a role that they do not know, silently.

    Raises:
        UsageError: it is not.
    """
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or "content" not in message:
        raise UsageError(f"messages[{index}]: expected a role and a content, found {message!r}")
    if message["role"] not in ROLES:
        raise UsageError(f"messages[{index}]: no role {message['role']!r}; there are {', '.join(ROLES)}")


class _Refused(Exception):
    """The template called raise_exception."""


def _raise(message: str) -> NoReturn:
    raise _Refused(message)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)
