"""From what a user gives as a prompt to token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgespec.errors import UsageError
from edgespec.runtime.text.chat_template import ChatTemplate, Message
from edgespec.runtime.text.tokenizer import Tokenizer

Prompt = str | Sequence[Message] | Sequence[int]


def encode_prompt(prompt: Prompt, chat: bool | None, tokenizer: Tokenizer, template: ChatTemplate | None) -> list[int]:
    """The token ids of a text, of messages, or of token ids, which are used as they are.

    Args:
        prompt: not empty.
        chat: whether a text is a user's message; None does so where there is a template.
        tokenizer: of the target.
        template: of the bundle, if it has one.

    Raises:
        UsageError: an empty prompt, one of another type, or messages without a template.
    """
    if isinstance(prompt, str):
        if not prompt:
            raise UsageError("the prompt is empty")
        if chat is None:
            chat = template is not None
        if not chat:
            return tokenizer.encode(prompt, prefix=True)
        prompt = [{"role": "user", "content": prompt}]
    if not isinstance(prompt, Sequence) and not hasattr(prompt, "__len__"):
        raise UsageError(f"prompt: expected a text, messages or token ids, found {type(prompt).__name__}")
    if len(prompt) == 0:
        raise UsageError("the prompt is empty")
    if not isinstance(prompt[0], Mapping):
        return tokenizer.check(prompt)  # type: ignore[arg-type]
    if template is None:
        raise UsageError("this bundle has no chat template: give the prompt as one text, without chat")
    return tokenizer.encode(template.render(prompt), prefix=False)  # type: ignore[arg-type]
