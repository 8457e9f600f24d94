"""What a generation can be asked for, checked once and then frozen."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from edgespec.errors import UsageError


@dataclasses.dataclass(frozen=True)
class GenerationOptions:
    """Options of ``Engine.stream`` and ``Engine.generate``.

    Attributes:
        chat: wrap a text in the chat template; None does so when the bundle has one.
        drafter: "auto" (n-gram, else the draft model), "none", or a drafter's name.
        draft_length: drafted tokens per round, "auto" for the number that measured costs and acceptance favour.
        max_new_tokens: exact upper limit.
        do_sample: draw from the target's distribution; otherwise the most likely token is taken.
        temperature, top_k, top_p, seed: of the draw. top_k 0 and top_p 1.0 cut nothing.
        exactness: "exact" uses only passes whose results do not depend on how many tokens they score, so that the text
            is the one of plain decoding; "fast" uses the narrowest pass.
        stop: texts that end the generation; they are not part of it.
        ignore_eos: go on after an end-of-text token. For measurements.
    """

    chat: bool | None = None
    drafter: str = "auto"
    draft_length: int | Literal["auto"] = "auto"
    max_new_tokens: int = 256
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    exactness: Literal["exact", "fast"] = "exact"
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

    @classmethod
    def of(cls, **options: Any) -> GenerationOptions:
        """Options from keywords.

        Raises:
            UsageError: an unknown name, or a value of the wrong type or out of range.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in options:
            if name not in known:
                raise UsageError(f"unknown option {name!r}; there are {', '.join(known)}")
        stop = options.pop("stop", None) or ()
        if not isinstance(stop, (str, Sequence)):
            raise UsageError(f"stop: expected texts, found {stop!r}")
        return cls(**options, stop=(stop,) if isinstance(stop, str) else tuple(stop))

    def __post_init__(self) -> None:
        def need(condition: bool, name: str, rule: str) -> None:
            if not condition:
                raise UsageError(f"{name}: {getattr(self, name)!r} {rule}")

        need(self.chat in (None, True, False), "chat", "is not true, false or none")
        need(isinstance(self.drafter, str), "drafter", "is not a drafter's name")
        length = self.draft_length
        need(
            length == "auto" or (_whole(length) and length >= 1),
            "draft_length",
            "is neither auto nor a number from 1; drafter none drafts nothing",
        )
        need(_whole(self.max_new_tokens) and self.max_new_tokens >= 1, "max_new_tokens", "is not a number from 1")
        need(
            _number(self.temperature) and 0 < self.temperature < float("inf"),
            "temperature",
            "is not above 0; leave do_sample out for greedy",
        )
        need(_whole(self.top_k) and self.top_k >= 0, "top_k", "is not a number from 0")
        need(_number(self.top_p) and 0 < self.top_p <= 1, "top_p", "is not above 0 and at most 1")
        need(self.seed is None or (_whole(self.seed) and self.seed >= 0), "seed", "is not a number from 0")
        need(self.exactness in ("exact", "fast"), "exactness", "is neither exact nor fast")
        need(all(isinstance(text, str) and text for text in self.stop), "stop", "has an entry that is not a text")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
