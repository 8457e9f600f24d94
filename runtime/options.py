"""What a generation can be asked for, checked once and then frozen."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from edgespec.errors import UsageError

MOST_BIAS = 1e4  # far beyond any logit, and far from where float32 would lose the logits beside it
SAMPLING_ONLY = ("temperature", "top_k", "top_p", "min_p", "typical_p", "seed", "acceptance")
GRAMMARS = ("json_schema", "regex", "grammar")


@dataclasses.dataclass(frozen=True)
class GenerationOptions:
    """Options of ``Engine.stream``, ``Engine.generate`` and ``Chat.send``. Names are those of transformers where it has one.

    Raises:
        UsageError: a value of the wrong type or out of range, or options that contradict each other.
    """

    chat: bool | None = None
    """Wrap a text in the chat template; None does so when the bundle has one."""
    drafter: str = "auto"
    """"auto" (n-gram, else a model that the bundle has for drafting), "none", or one name or several with commas between, in
    the order in which they are asked."""
    draft_length: int | Literal["auto"] = "auto"
    """Drafted tokens per round, "auto" for the number that measured costs and acceptance favour."""
    lookahead: tuple[int, int, int] | None = None
    """W, N and G of Lookahead decoding: columns of the window, size of the n-grams, and n-grams verified at once. None for (4, 3, 2),
    or less if the bundle's graph is narrower."""
    exactness: Literal["exact", "fast"] = "exact"
    """"exact" uses only passes whose results do not depend on how many tokens they score, so that the text is the one of
    plain decoding; "fast" uses the narrowest pass."""

    max_new_tokens: int = 256
    """Exact upper limit."""
    endless: bool = False
    """Go on when the cache is full: the target then sees the first four tokens and the end of the text
    (:mod:`edgespec.runtime.endless`). Otherwise the text ends there, and a longer prompt is refused."""
    min_new_tokens: int = 0
    """No end-of-text token before so many tokens. A stop text can still end it earlier."""
    stop: tuple[str, ...] = ()
    """Texts that end the generation; they are not part of it. ``stop_strings`` is the same."""
    ignore_eos: bool = False
    """Go on after an end-of-text token. For measurements."""

    do_sample: bool = False
    """Draw from the target's distribution; otherwise the most likely token is taken."""
    temperature: float = 1.0
    """Of the draw: scores are divided by it."""
    top_k: int = 0
    """Draw from so many most likely tokens; 0 for all."""
    top_p: float = 1.0
    """Draw from the fewest most likely tokens that have this share; 1 for all."""
    min_p: float = 0.0
    """Draw from tokens at least so likely, as a share of the most likely one; 0 for all."""
    typical_p: float = 1.0
    """Draw from the fewest tokens with this share whose information is nearest to the expected one; 1 for all."""
    seed: int | None = None
    """The same seed draws the same text, on the same machine with the same other options."""
    acceptance: Literal["auto", "match", "ratio", "typical"] = "auto"
    """How drafted tokens are accepted when sampling; the first two ways are lossless. "match" draws from the target and compares: a
    seed gives the same text with every drafter. "ratio" accepts with probability min(1, p / q), more often where
    the draft draws too; a seed then repeats a text for the same drafter and a fixed draft_length only. "auto" is match
    with a seed and ratio without.
    "typical" is not lossless: it takes every drafted token that the target does not find unlikely (Medusa), and the statistics say so."""

    repetition_penalty: float = 1.0
    """Above 1, tokens that occur in prompt or text get less likely; 1 for none."""
    presence_penalty: float = 0.0
    """Subtracted from the score of every token that the new text has."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's score for each time that the new text has it."""
    no_repeat_ngram_size: int = 0
    """No so many tokens in a row occur twice, the prompt included; 0 for no such rule."""
    logit_bias: Mapping[int, float] = dataclasses.field(default_factory=dict)
    """Added to the scores of single token ids."""
    banned_tokens: tuple[int, ...] = ()
    """Token ids that are never written."""
    forced_tokens: tuple[int, ...] = ()
    """Token ids that the text begins with."""

    json_schema: str | Mapping[str, Any] | None = None
    """The text is JSON that this schema allows: a schema or its JSON. Needs ``edgespec[structured]``, as the next two do."""
    regex: str | None = None
    """The whole text matches this expression (syntax of Rust's regex crate)."""
    grammar: str | None = None
    """The whole text is derived by this context-free grammar (llguidance's dialect of Lark)."""

    @classmethod
    def of(cls, base: GenerationOptions | None = None, /, **options: Any) -> GenerationOptions:
        """Options from keywords, on top of ``base``.

        Raises:
            UsageError: also for an unknown name.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        if "stop_strings" in options:
            if options.get("stop"):
                raise UsageError("stop and stop_strings are one option: give one of them")
            options["stop"] = options.pop("stop_strings")
        for name in options:
            if name not in known:
                raise UsageError(f"unknown option {name!r}; there are {', '.join(known)}")
        if base is None:
            return cls(**options)
        if not isinstance(base, GenerationOptions):
            raise UsageError(f"options: expected GenerationOptions, found {type(base).__name__}")
        return dataclasses.replace(base, **options)

    def _normalise(self) -> None:
        """Lists and single texts become what the fields are declared as."""
        stop: Any = self.stop or ()
        if not isinstance(stop, (str, Sequence)):
            raise UsageError(f"stop: expected texts, found {stop!r}")
        changed: dict[str, Any] = {name: _ids(name, getattr(self, name)) for name in ("banned_tokens", "forced_tokens")}
        changed |= {"stop": (stop,) if isinstance(stop, str) else tuple(stop)}
        if isinstance(self.lookahead, list):
            changed["lookahead"] = tuple(self.lookahead)
        for name, value in changed.items():
            object.__setattr__(self, name, value)

    def __post_init__(self) -> None:
        self._normalise()

        def need(condition: bool, name: str, rule: str) -> None:
            if not condition:
                raise UsageError(f"{name}: {getattr(self, name)!r} {rule}")

        for name in ("endless", "ignore_eos", "do_sample"):
            need(isinstance(getattr(self, name), bool), name, "is not true or false")
        need(self.chat in (None, True, False), "chat", "is not true, false or none")
        need(isinstance(self.drafter, str), "drafter", "is not a drafter's name")
        length = self.draft_length
        need(
            length == "auto" or (_whole(length) and length >= 1),
            "draft_length",
            "is neither auto nor a number from 1; drafter none drafts nothing",
        )
        window = self.lookahead
        need(
            window is None
            or (isinstance(window, tuple) and len(window) == 3 and all(map(_whole, window)) and min(window) >= 1 and window[1] >= 2),
            "lookahead",
            "is not three numbers W, N, G: W and G from 1, N from 2",
        )
        need(self.exactness in ("exact", "fast"), "exactness", "is neither exact nor fast")
        need(_whole(self.max_new_tokens) and self.max_new_tokens >= 1, "max_new_tokens", "is not a number from 1")
        need(_whole(self.min_new_tokens) and self.min_new_tokens >= 0, "min_new_tokens", "is not a number from 0")
        need(all(isinstance(text, str) and text for text in self.stop), "stop", "has an entry that is empty or not a text")
        self._check_sampling(need)
        self._check_penalties(need)
        self._check_grammars(need)
        self._check_contradictions()

    def _check_sampling(self, need: Callable[[bool, str, str], None]) -> None:
        need(
            _number(self.temperature) and 0 < self.temperature < float("inf"),
            "temperature",
            "is not above 0; leave do_sample out for greedy",
        )
        need(_whole(self.top_k) and self.top_k >= 0, "top_k", "is not a number from 0")
        need(_number(self.top_p) and 0 < self.top_p <= 1, "top_p", "is not above 0 and at most 1")
        need(_number(self.min_p) and 0 <= self.min_p <= 1, "min_p", "is not from 0 to 1")
        need(_number(self.typical_p) and 0 < self.typical_p <= 1, "typical_p", "is not above 0 and at most 1")
        need(self.seed is None or (_whole(self.seed) and 0 <= self.seed < 2**128), "seed", "is not a number from 0")
        need(self.acceptance in ("auto", "match", "ratio", "typical"), "acceptance", "is neither auto, match, ratio nor typical")

    def _check_penalties(self, need: Callable[[bool, str, str], None]) -> None:
        need(
            _number(self.repetition_penalty) and 1e-3 <= self.repetition_penalty <= 1e3,
            "repetition_penalty",
            "is not from 0.001 to 1000; 1 is none",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            need(_number(getattr(self, name)) and abs(getattr(self, name)) <= 1e3, name, "is not from -1000 to 1000; 0 is none")
        need(_whole(self.no_repeat_ngram_size) and self.no_repeat_ngram_size >= 0, "no_repeat_ngram_size", "is not a number from 0")
        bias = self.logit_bias
        need(
            isinstance(bias, Mapping) and all(_whole(key) and _number(value) and abs(value) <= MOST_BIAS for key, value in bias.items()),
            "logit_bias",
            f"is not a mapping from token ids to numbers from {-MOST_BIAS:.0f} to {MOST_BIAS:.0f}",
        )

    def _check_grammars(self, need: Callable[[bool, str, str], None]) -> None:
        need(self.json_schema is None or isinstance(self.json_schema, (str, Mapping)), "json_schema", "is neither a schema nor its text")
        for name in ("regex", "grammar"):
            need(getattr(self, name) is None or (isinstance(getattr(self, name), str) and getattr(self, name)), name, "is not a text")

    def _check_contradictions(self) -> None:
        """Options that each are fine and together are not."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        if not self.do_sample:
            for name in SAMPLING_ONLY:
                if getattr(self, name) != defaults[name]:
                    raise UsageError(f"{name}: has no effect without do_sample=True")
        if self.min_new_tokens > self.max_new_tokens:
            raise UsageError(f"min_new_tokens: {self.min_new_tokens} is more than max_new_tokens, {self.max_new_tokens}")
        both = sorted(set(self.banned_tokens) & set(self.forced_tokens))
        if both:
            raise UsageError(f"forced_tokens: {both[0]} is banned as well")
        grammars = [name for name in GRAMMARS if getattr(self, name) is not None]
        if len(grammars) > 1:
            raise UsageError(f"{grammars[0]} and {grammars[1]}: a text follows one grammar")
        if grammars:
            for name in ("ignore_eos", "min_new_tokens", "forced_tokens"):
                if getattr(self, name):
                    raise UsageError(f"{name}: contradicts {grammars[0]}, which decides how the text begins and where it ends")

    @property
    def has_grammar(self) -> bool:
        return any(getattr(self, name) is not None for name in GRAMMARS)

    def check_ids(self, size: int, eos_ids: Sequence[int]) -> None:
        """Compare token ids with a vocabulary of ``size``.

        Raises:
            UsageError: an id that it does not have, or a rule that could never be kept.
        """
        for name in ("logit_bias", "banned_tokens", "forced_tokens"):
            for token in getattr(self, name):
                if not 0 <= token < size:
                    raise UsageError(f"{name}: {token} is not a token id from 0 to {size - 1}")
        if len(set(self.banned_tokens)) >= size:
            raise UsageError("banned_tokens: no token is left")
        early = [token for token in self.forced_tokens[: self.min_new_tokens] if token in eos_ids]
        if early:
            raise UsageError(f"forced_tokens: {early[0]} ends the text before min_new_tokens")


def _ids(name: str, value: Any) -> tuple[int, ...]:
    try:
        ids = tuple(value)
    except TypeError as error:
        raise UsageError(f"{name}: expected token ids, found {value!r}") from error
    for token in ids:
        if isinstance(token, bool) or not hasattr(token, "__index__"):
            raise UsageError(f"{name}: {token!r} is not a token id")
    return tuple(int(token) for token in ids)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
