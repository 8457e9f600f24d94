"""Counters of one generation. They add up, which a test holds:

new_tokens     = accepted + own_tokens + forced  a token is an accepted draft, the target's own, or one that a grammar
                                                left no choice about
own_tokens     = 1 + target_passes              the prefill's one and one per pass, less one if the last pass
                                                ended inside its accepted tokens
accepted      <= drafted, and both are the sums of their counts by position and by drafter
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from typing import Any, Literal

from edgespec.runtime.memory.measure import usage


@dataclasses.dataclass
class Stats:
    """Statistics of one generation; times in seconds, of which none counts what the caller does between two pieces."""

    drafter: str = "none"
    draft_length: int | str = 0
    """As asked: a number, or "auto"; 0 for plain decoding."""
    exactness: str = "exact"
    """What holds for this text. "exact": plain decoding's, proven bit for bit. "checked": plain decoding's, since near-ties
    were scored again. "typical": not plain decoding's, since drafted tokens were accepted that it might not have drawn; it was asked
    for. "fast": near-ties may fall the other way; it was asked for, or no more could be shown on this
    machine."""
    prompt_tokens: int = 0
    reused_tokens: int = 0
    """Prompt tokens whose cache rows were still there from the call before."""
    prefill_passes: int = 0
    target_passes: int = 0
    """Passes of the target after the prefill."""
    draft_passes: int = 0
    drafted: int = 0
    accepted: int = 0
    branches: Literal["commit", "seed"] = "commit"
    """What the branches of a draft tree beside its first path may do: commit tokens, or only say what is drafted next."""
    from_branches: int = 0
    """Accepted tokens beside the first path of their tree."""
    seeded: int = 0
    """Drafted tokens that the target had said on a branch that could not commit."""
    forced: int = 0
    """Tokens that came without a pass, because a grammar allowed nothing else."""
    new_tokens: int = 0
    dropped_tokens: int = 0
    """Tokens of prompt and text behind the first ones that the target no longer saw at the end, of an endless text."""
    rechecked: int = 0
    """Tokens that were scored again because two were nearly tied, under "checked"."""
    time_to_first_token_s: float = 0.0
    decode_s: float = 0.0
    """From the first token to the last."""
    run_s: float = 0.0
    """The part of decode_s inside ONNX Runtime."""
    rounds_by_draft_length: Counter[int] = dataclasses.field(default_factory=Counter)
    drafted_by_drafter: dict[str, Counter[int]] = dataclasses.field(default_factory=lambda: defaultdict(Counter))
    """Numbers of drafted tokens by drafter and position: from 1, in a tree the depth. The drafter "guess" stands for n-gram guesses in
    rows that would have been padding, "seed" for what the target had said on a branch."""
    accepted_by_drafter: dict[str, Counter[int]] = dataclasses.field(default_factory=lambda: defaultdict(Counter))
    """The same of those that were accepted."""
    degraded: list[str] = dataclasses.field(default_factory=list)
    """What was given up for want of memory: for the budget when the engine was loaded, then during generations."""
    predicted_peak_bytes: int | None = None
    """What the memory plan expected, under a budget."""
    speculation_off: str | None = None
    """Why there was, at the end, no speculation although a drafter was asked for."""

    @property
    def own_tokens(self) -> int:
        return self.new_tokens - self.accepted - self.forced

    @property
    def drafted_by_position(self) -> Counter[int]:
        return sum(self.drafted_by_drafter.values(), Counter())

    @property
    def accepted_by_position(self) -> Counter[int]:
        return sum(self.accepted_by_drafter.values(), Counter())

    @property
    def tokens_per_pass(self) -> float:
        """Tokens after the first per pass after the prefill; 1 for plain decoding."""
        return (self.new_tokens - 1) / self.target_passes if self.target_passes else 1.0

    @property
    def acceptance_rate(self) -> float | None:
        return self.accepted / self.drafted if self.drafted else None

    @property
    def decode_tokens_per_s(self) -> float:
        return (self.new_tokens - 1) / self.decode_s if self.decode_s > 0 and self.new_tokens > 1 else 0.0

    @property
    def overhead_share(self) -> float:
        """Share of decode_s that is ours and not ONNX Runtime's."""
        return 1 - self.run_s / self.decode_s if self.decode_s > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Everything in plain JSON types, with the peak memory of the process so far."""
        derived = (
            "own_tokens",
            "tokens_per_pass",
            "acceptance_rate",
            "decode_tokens_per_s",
            "overhead_share",
            "drafted_by_position",
            "accepted_by_position",
        )
        data = {name: getattr(self, name) for name in (*(field.name for field in dataclasses.fields(self)), *derived)}
        return {**{name: _plain(value) for name, value in data.items()}, **usage().as_dict()}


def _plain(value: Any) -> Any:
    """``value`` with its keys as text, in order."""
    return {str(key): _plain(count) for key, count in sorted(value.items())} if isinstance(value, dict) else value
