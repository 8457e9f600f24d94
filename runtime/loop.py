"""The loop. It reads from top to bottom: prefill, then rounds of propose, verify, accept, keep, finish.

Plain decoding is this loop with a proposer that has no drafters. Between rounds the target's cache holds every token of
the context but the last, which the next pass brings along.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Literal

from edgespec.errors import CapacityError
from edgespec.runtime.accept import Accepted, accept
from edgespec.runtime.drafters.proposer import Proposer
from edgespec.runtime.exactness import WidthRule
from edgespec.runtime.model import Floats, Model
from edgespec.runtime.sampling import Sampler
from edgespec.runtime.stats import Stats
from edgespec.tree import DraftTree

FinishReason = Literal["eos", "stop", "length", "capacity"]


@dataclasses.dataclass(frozen=True)
class Target:
    """The target as the loop sees it.

    Attributes:
        widths: widths that a verification pass may have.
        prefill_widths: widths that a chunk of the prompt may have; the widest is the size of a full chunk.
        vocabulary: ids from it on are padding of the head and are never chosen.
        eos_ids: tokens that end a text.
        branches: whether every branch of a tree may commit tokens, see :func:`edgespec.runtime.accept.accept`.
    """

    model: Model
    widths: WidthRule
    prefill_widths: WidthRule
    vocabulary: int
    eos_ids: frozenset[int]
    branches: bool


@dataclasses.dataclass(frozen=True)
class Block:
    """Tokens that one pass gave, whether each was drafted, and why the text ends with them, if it does."""

    tokens: tuple[int, ...]
    drafted: tuple[bool, ...]
    finish: FinishReason | None


def generate_blocks(
    target: Target, proposer: Proposer, sampler: Sampler, context: list[int], max_new_tokens: int, stats: Stats
) -> Iterator[Block]:
    """Extend ``context`` block by block; the last block says why it ended.

    Args:
        target: the model, and the rules under which it runs.
        proposer: its drafters; none for plain decoding.
        sampler: chooses a token from a row of logits.
        max_new_tokens: exact upper limit.
        context: the prompt. The first ``target.model.length`` tokens, at most all but one, are in the cache already.
            It grows as tokens are committed; at every yield it is in step with the cache.
        stats: is kept up to date.

    Raises:
        CapacityError: the prompt does not fit.
    """
    limit, at_limit = most_tokens(target, len(context), max_new_tokens)
    started = time.perf_counter()
    logits = prefill(target, context, stats)
    accepted = accept(DraftTree(), logits[:, : target.vocabulary], sampler)
    block = finish(target, accepted, context, limit, at_limit, stats)
    stats.time_to_first_token_s += time.perf_counter() - started
    run_prefill = target.model.run_seconds + proposer.run_seconds
    yield block
    while block.finish is None:
        started = time.perf_counter()
        tree, width = propose(target, proposer, context, limit - stats.new_tokens - 1)
        logits = verify(target, context, tree, width)
        accepted = accept(tree, logits[:, : target.vocabulary], sampler, branches=target.branches)
        keep(target, accepted, context)
        block = finish(target, accepted, context, limit, at_limit, stats)
        proposer.observe(context, len(accepted.path))
        count(stats, proposer, tree)
        stats.run_s = target.model.run_seconds + proposer.run_seconds - run_prefill
        stats.decode_s += time.perf_counter() - started
        yield block


def most_tokens(target: Target, prompt: int, wanted: int) -> tuple[int, FinishReason]:
    """How many tokens there can be, and the reason if that many come.

    The last rounds need room for the narrowest allowed pass. Counting for plain decoding, and letting speculation have no
    more, makes both end at the same token.
    """
    narrowest = target.widths.widths[0]
    possible = target.model.capacity - prompt - narrowest + 2
    if prompt > target.model.capacity or possible < 1:
        raise CapacityError(
            f"the prompt has {prompt} tokens and the cache holds {target.model.capacity}; shorten it, or export or load with more context"
        )
    return (wanted, "length") if wanted <= possible else (possible, "capacity")


def prefill(target: Target, context: Sequence[int], stats: Stats) -> Floats:
    """Run the tokens that are not in the cache, in chunks; the logits [1, V] of the last one."""
    model = target.model
    chunk = target.prefill_widths.widths[-1]
    stats.reused_tokens = model.length
    while True:
        tokens = context[model.length : model.length + chunk]
        room = model.capacity - model.length
        width = target.prefill_widths.fit(len(tokens), room)
        if width is None:  # Near the capacity there may be no room for so much padding.
            tokens = tokens[: target.prefill_widths.widest(min(room, len(tokens)))]
        logits = model.run(tokens, [len(tokens) - 1], width=width)
        stats.prefill_passes += 1
        if model.length == len(context):
            return logits


def propose(target: Target, proposer: Proposer, context: Sequence[int], limit: int) -> tuple[DraftTree, int]:
    """A tree of at most ``limit`` nodes and the width of the pass that verifies it."""
    room = target.model.capacity - target.model.length
    widest = target.widths.widest(room)
    tree = proposer.propose(context, min(limit, widest - 1))
    width = target.widths.fit(1 + len(tree), room) or widest
    return proposer.fill(context, tree, min(limit, width - 1) - len(tree)), width


def verify(target: Target, context: Sequence[int], tree: DraftTree, width: int) -> Floats:
    """Logits [1 + n, V] of the last token and of the n nodes, in one pass."""
    parents = None if tree.is_chain else (-1, *(parent + 1 for parent in tree.parents))
    return target.model.run((context[-1], *tree.tokens), range(1 + len(tree)), parents, width)


def keep(target: Target, accepted: Accepted, context: Sequence[int]) -> None:
    """Keep the cache rows of the context and of the accepted nodes."""
    target.model.keep_path(len(context) - 1, (0, *(node + 1 for node in accepted.path)))


def finish(target: Target, accepted: Accepted, context: list[int], limit: int, at_limit: FinishReason, stats: Stats) -> Block:
    """Commit tokens one by one until a rule ends the text. What was accepted after that is dropped, from the cache too."""
    reason: FinishReason | None = None
    tokens: list[int] = []
    for token in accepted.tokens:
        tokens.append(token)
        if token in target.eos_ids:
            reason = "eos"
        elif stats.new_tokens + len(tokens) == limit:
            reason = at_limit
        if reason:
            break
    drafted = tuple(index < len(accepted.path) for index in range(len(tokens)))
    context.extend(tokens)
    stats.new_tokens += len(tokens)
    stats.accepted += sum(drafted)
    target.model.keep(len(context) - 1)
    return Block(tuple(tokens), drafted, reason)


def count(stats: Stats, proposer: Proposer, tree: DraftTree) -> None:
    """Counters of a round."""
    stats.target_passes += 1
    stats.drafted += len(tree)
    stats.draft_passes = proposer.passes
    stats.rounds_by_draft_length[len(tree)] = stats.rounds_by_draft_length.get(len(tree), 0) + 1
    stats.speculation_off = proposer.off
