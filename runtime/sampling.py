"""Samplers: callables from one row of logits [V] to a token id, made by a factory so that the loop has no options.

Acceptance is sample-and-match: the sampler draws from the target's distribution p at each row, in order, and a drafted
token is accepted exactly when it equals the draw. Every emitted token is then a draw from p whatever the drafter
proposed, so it is lossless for any drafter, also one that cannot state its own distribution q; and since one random
number is used per emitted token, a seed gives the same text with and without speculation. (For a greedy draft it
accepts as often as the rule of Leviathan et al. 2023, algorithm 1: with probability p of the proposed token.)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from edgespec.errors import RuntimeFailure

Sampler = Callable[[npt.NDArray[np.float32]], int]


def make_sampler(
    *, do_sample: bool = False, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, seed: int | None = None
) -> Sampler:
    """Greedy without ``do_sample``; otherwise temperature, then top_k (0 for all), then top_p, drawn with ``seed``."""
    if not do_sample:
        return greedy
    generator = np.random.default_rng(seed)

    def sample(logits: npt.NDArray[np.float32]) -> int:
        tokens, probabilities = distribution(logits, temperature, top_k, top_p)
        cumulative = np.cumsum(probabilities)
        index = int(np.searchsorted(cumulative, generator.random() * cumulative[-1], side="right"))
        return int(tokens[min(index, len(tokens) - 1)])

    return sample


def greedy(logits: npt.NDArray[np.float32]) -> int:
    """The most likely token, the lowest id among equals."""
    token = int(logits.argmax())  # argmax prefers a NaN to any number, so looking at its choice finds every NaN
    if not np.isfinite(logits[token]):
        raise RuntimeFailure("the target's logits are not finite (NaN or infinity): the bundle's weights are damaged or overflow")
    return token


def distribution(
    logits: npt.NDArray[np.float32], temperature: float, top_k: int, top_p: float
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """The tokens that may be drawn and their probabilities, not yet summing to one after the cut.

    ``top_k`` keeps the k most likely; of these ``top_p`` keeps the fewest that together reach that share.
    """
    largest = logits[greedy(logits)]
    tokens = np.arange(len(logits))
    if 0 < top_k < len(logits):
        tokens = np.sort(np.argpartition(logits, -top_k)[-top_k:])
    weights = np.exp((logits[tokens].astype(np.float64) - largest) / temperature)
    weights /= weights.sum()
    if top_p < 1.0:
        order = np.argsort(-weights, kind="stable")
        needed = int(np.searchsorted(np.cumsum(weights[order]), top_p)) + 1
        order = order[:needed]
        tokens, weights = tokens[order], weights[order]
    return tokens, weights
