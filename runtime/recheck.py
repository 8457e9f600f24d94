"""Near-ties under "checked": decided by plain decoding's own passes, see :mod:`edgespec.runtime.exactness`.

Where passes of different widths differ by a little, greedy text can only part at a row whose two best tokens are nearly
tied. Such a row is scored again as plain decoding would have: every row since the prompt, or since the last place that was checked,
is computed once more in a pass of one token. Ties are rare, and each row is computed again at most once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgespec.runtime.accept import Accepted
from edgespec.runtime.models.model import Model
from edgespec.runtime.sampling.processors import Floats, Text
from edgespec.runtime.sampling.sampling import Sampler


class Recheck:
    """Of one generation.

    Attributes:
        clean: so many of the first rows of the cache are as plain decoding leaves them, once the prompt has been read.
    """

    def __init__(self, margin: float) -> None:
        self.margin = margin
        self.clean = 0

    def doubts(self, sampler: Sampler) -> Callable[[Floats, Text], bool]:
        """Says of a row whether its choice could be another one in a pass of another width."""
        return lambda row, text: sampler.is_close(row, text, self.margin)

    def decide(
        self, model: Model, sampler: Sampler, context: Sequence[int], seen: Sequence[int], accepted: Accepted, vocabulary: int
    ) -> Accepted:
        """``accepted`` with the token that was in doubt. The cache then holds what is ``seen`` of the context, and the accepted tokens."""
        text = [*seen, *accepted.tokens]
        model.keep(min(self.clean, model.length))
        while model.length < len(text):
            logits = model.run(text[model.length : model.length + 1], [0])
        self.clean = len(text)
        token = sampler(logits[0, :vocabulary], Text(context, accepted.tokens))
        return Accepted(accepted.path, (*accepted.tokens, token))
