"""Structured output: text that a JSON schema, a regular expression or a grammar allows, through llguidance.

The grammar is an edit (see :mod:`edgespec.runtime.sampling.processors`): it leaves a row only the tokens that can come next. Target
and draft are asked under the same one, so a draft proposes what is allowed. Its parser follows whatever text it is asked
about, along a draft, along a branch of a tree and back: it is rolled back to what two texts share.

Where the grammar leaves no choice about the next bytes, their tokens are forced: they are committed without a pass. The queue
of forced tokens is a function of the text from its start, so that a text does not depend on where blocks begin.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgespec.errors import BundleError, RuntimeFailure, UsageError
from edgespec.runtime.options import GRAMMARS, GenerationOptions
from edgespec.runtime.sampling import processors
from edgespec.runtime.sampling.processors import Floats, Text

if TYPE_CHECKING:
    import llguidance

# One way to write JSON, the one of Python's json.dumps: where white space is free, small models write it without end.
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def import_llguidance() -> Any:
    """The llguidance module.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import llguidance
    except ImportError as error:
        raise UsageError("structured output needs llguidance; install it with: pip install 'edgespec[structured]'") from error
    return llguidance


class GrammarMaker:
    """Compiles grammars for one tokenizer: ``file`` with ``size`` ids, of which ``eos_ids`` end a text."""

    def __init__(self, file: Path, size: int, eos_ids: Sequence[int]) -> None:
        self._matcher = import_llguidance().LLMatcher
        self._size = size
        self._eos_ids = tuple(eos_ids)
        if not eos_ids:
            raise UsageError("structured output needs an end-of-text token, and this bundle names none")
        try:
            text = file.read_text(encoding="utf-8")
            self._tokenizer = import_llguidance().LLTokenizer(text, n_vocab=size, eos_token=list(eos_ids))
        except Exception as error:  # llguidance raises ValueError, and whatever its tokenizer library raises
            raise BundleError(f"{file}: llguidance cannot use this tokenizer: {_line(error)}") from error

    def make(self, options: GenerationOptions, prompt_length: int) -> Grammar:
        """The grammar that ``options`` ask for.

        Raises:
            UsageError: it does not parse, or nothing can satisfy it.
        """
        name = next(name for name in GRAMMARS if getattr(options, name) is not None)
        text = self._compile(name, getattr(options, name))
        failed, messages = self._matcher.validate_grammar_with_warnings(text, self._tokenizer)
        if failed:
            raise UsageError(f"{name}: {_line(messages[0])}")
        matcher = self._matcher(self._tokenizer, text, log_level=0)
        if matcher.is_error():
            raise UsageError(f"{name}: {_line(matcher.get_error())}")
        return Grammar(name, matcher, self._size, self._eos_ids, prompt_length)

    def _compile(self, name: str, value: Any) -> str:
        if name == "regex":
            return str(self._matcher.grammar_from_regex(value))
        if name == "grammar":
            return str(self._matcher.grammar_from_lark(value))
        try:
            schema = json.loads(value) if isinstance(value, str) else dict(value)
            if not isinstance(schema, dict):
                raise ValueError("a schema is an object")
            return str(self._matcher.grammar_from_json_schema(json.dumps(schema), defaults=JSON_STYLE))
        except (ValueError, TypeError, RecursionError) as error:
            raise UsageError(f"json_schema: not a JSON schema: {_line(error)}") from error


class Grammar:
    """The grammar of one generation, whose prompt has ``start`` tokens."""

    def __init__(self, name: str, matcher: llguidance.LLMatcher, size: int, eos_ids: Sequence[int], start: int) -> None:
        self._name = name
        self._matcher = matcher
        self._start = start
        self._eos_ids = tuple(eos_ids)
        self._bits = np.zeros(-(-size // 32), np.int32)
        self._text: list[int] = []
        """The new tokens that the parser has read."""
        self._queues: list[tuple[int, ...]] = [self._forced_now()]
        """The tokens that were forced before each token of the text, and those that are forced next."""

    def __call__(self, row: Floats, text: Text) -> None:
        if self._follow(text):
            return  # Behind the end: nobody reads this row.
        if self._queues[-1]:
            processors.only(self._queues[-1][0], row)
            return
        allowed = self._allowed()[: len(row)]
        few = np.flatnonzero(allowed)
        if 8 * len(few) < len(row):
            kept = row[few]
            row.fill(-np.inf)
            row[few] = kept
        else:
            np.putmask(row, ~allowed, -np.inf)

    def forced(self, text: Text) -> Sequence[int]:
        """Tokens that must come next, in order."""
        forced: list[int] = []
        while not self._follow(Text(text.context, [*text.ahead, *forced])) and self._queues[-1]:
            forced += self._queues[-1]
        return forced

    def _allowed(self) -> npt.NDArray[np.bool_]:
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        self._check()
        return np.unpackbits(self._bits.view(np.uint8), bitorder="little").view(np.bool_)

    def _follow(self, text: Text) -> bool:
        """Bring the parser to ``text``, and say whether that has ended. The parser does not see the token that ends it: it
        does not count it where it could read nothing else, and would then roll back too far."""
        new = [*text.context[self._start :], *text.ahead]
        end = next((index for index, token in enumerate(new) if token in self._eos_ids), len(new))
        ended = end < len(new)
        del new[end:]
        same = next((index for index, (a, b) in enumerate(zip(self._text, new, strict=False)) if a != b), min(len(self._text), len(new)))
        if same < len(self._text):
            self._matcher.rollback(len(self._text) - same)
            del self._text[same:], self._queues[same + 1 :]
        for token in new[same:]:
            if not self._matcher.consume_token(token):
                self._check()
            self._text.append(token)
            self._queues.append(self._queues[-1][1:] or self._forced_now())
        return ended

    def _forced_now(self) -> tuple[int, ...]:
        forced = tuple(self._matcher.compute_ff_tokens())
        if not forced and self._matcher.is_stopped():
            self._check()
            return self._eos_ids[:1]
        return forced

    def _check(self) -> None:
        if self._matcher.is_error():
            raise RuntimeFailure(f"{self._name}: the parser gave up: {_line(self._matcher.get_error())}")


def _line(error: object) -> str:
    """The first sentence of an error, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^|")]
    wanted = next((line for line in lines if line.startswith("error: ")), "")
    text = lines[0] if lines else type(error).__name__
    return f"{text} {wanted.removeprefix('error: ')}".strip()[:300]
