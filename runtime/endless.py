"""Texts that go on when the cache is full: the target sees the first tokens, which attention leans on as sinks, and the last ones.

Xiao et al. 2023 (StreamingLLM) keep cached keys and values and give them positions inside the cache, for which keys would have to be
rotated anew. Here the rows that stay in sight are computed again from their tokens, so it is right for every model, whatever its
positions are, and nothing of what was dropped lives on in them. Half of the window goes at once, so it happens rarely: a token
costs one more token of a prompt.

What is dropped depends on the length of the text alone and not on the passes that it came in, so text with drafts stays that of plain
decoding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

SINKS = 4  # tokens; more bring nothing (Xiao et al. 2023, table 2)
LEAST_CAPACITY = 32


@dataclasses.dataclass(frozen=True)
class Rolling:
    """The first ``SINKS`` tokens and the last ones are seen, at most ``most`` in all."""

    most: int

    def dropped(self, length: int) -> int:
        """How many tokens behind the sinks are not seen of a text of ``length`` tokens."""
        over, step = length - self.most, (self.most - SINKS) // 2
        return max(0, -(-over // step) * step)

    def see(self, context: Sequence[int]) -> Sequence[int]:
        """What is seen of the text."""
        dropped = self.dropped(len(context))
        return [*context[:SINKS], *context[SINKS + dropped :]] if dropped else context

    def room(self, length: int) -> int:
        """Tokens that can come behind a text of ``length`` before more of it is dropped."""
        return self.most - (length - self.dropped(length))
