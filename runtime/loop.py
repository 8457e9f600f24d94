"""The loop. It reads from top to bottom: prefill, then rounds of propose, verify, accept, keep, finish.

Plain decoding is this loop with a proposer that has no drafters. Between rounds the target's cache holds every token of
the context but the last, which the next pass brings along; so it does with tokens that a grammar forced after it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from edgespec.errors import NO_MEMORY, CapacityError
from edgespec.runtime.accept import Accepted, accept
from edgespec.runtime.drafters import Round
from edgespec.runtime.drafters.proposer import Proposer
from edgespec.runtime.endless import Rolling
from edgespec.runtime.exactness import WidthRule
from edgespec.runtime.memory.relief import Relief
from edgespec.runtime.models.model import Model
from edgespec.runtime.models.rows import Floats
from edgespec.runtime.recheck import Recheck
from edgespec.runtime.sampling.processors import Text
from edgespec.runtime.sampling.sampling import Sampler
from edgespec.runtime.stats import Stats
from edgespec.tree import DraftTree

FinishReason = Literal["eos", "stop", "length", "capacity", "stopped"]


@dataclasses.dataclass(frozen=True)
class Target:
    """The target as the loop sees it.

    Attributes:
        widths: widths that a verification pass may have.
        prefill_widths: widths that a chunk of the prompt may have; the widest is the size of a full chunk.
        vocabulary: ids from it on are padding of the head and are never chosen.
        eos_ids: tokens that end a text.
        branches: whether every branch of a tree may commit tokens, see :func:`edgespec.runtime.accept.accept`.
        stopped: asked before each pass; once true, the text ends.
        recheck: scores near-ties again where widths differ a little; None where they do not, or nobody minds.
        relief: what is done when a pass finds no memory.
        rolling: what is seen of a text that is longer than the cache; None where the text ends there.
    """

    model: Model
    widths: WidthRule
    prefill_widths: WidthRule
    vocabulary: int
    eos_ids: frozenset[int]
    branches: bool
    stopped: Callable[[], bool] = lambda: False
    recheck: Recheck | None = None
    relief: Relief = dataclasses.field(default_factory=Relief)
    rolling: Rolling | None = None

    def sees(self, context: Sequence[int]) -> Sequence[int]:
        """The part of a text that belongs into the cache."""
        return context if self.rolling is None else self.rolling.see(context)


@dataclasses.dataclass(frozen=True)
class Block:
    """Tokens that one pass gave, whether each was drafted, how many of the last were forced, and why the text ends with
    them, if it does."""

    tokens: tuple[int, ...]
    drafted: tuple[bool, ...]
    forced: int
    finish: FinishReason | None


STOPPED = Block((), (), 0, "stopped")


def generate_blocks(
    target: Target, proposer: Proposer, sampler: Sampler, context: list[int], max_new_tokens: int, stats: Stats
) -> Iterator[Block]:
    """Extend ``context`` block by block; the last block says why it ended.

    Args:
        target: the model, and the rules under which it runs.
        proposer: its drafters; none for plain decoding.
        sampler: chooses a token from a row of logits, and knows tokens that follow whatever the logits.
        max_new_tokens: exact upper limit.
        context: the prompt. Of what the target sees of it the first ``target.model.length`` tokens, at most all but one, are in the
            cache already. It grows as tokens are committed; at every yield it is in step with the cache.
        stats: is kept up to date.

    Raises:
        CapacityError: the prompt does not fit.
    """
    limit, at_limit = most_tokens(target, len(context), max_new_tokens)
    started = time.perf_counter()
    proposer.begin(context)
    seen = target.sees(context)
    stats.dropped_tokens = len(context) - len(seen)
    logits = prefill(target, seen, stats)
    if logits is None:
        yield STOPPED
        return
    if target.recheck:
        target.recheck.clean = target.model.length
    accepted = accept(DraftTree(), logits[:, : target.vocabulary], sampler, context=context)
    block = finish(target, accepted, sampler, context, limit, at_limit, stats)
    stats.time_to_first_token_s += time.perf_counter() - started
    run_prefill = target.model.run_seconds + proposer.run_seconds
    yield block
    while block.finish is None:
        if target.stopped():
            yield STOPPED
            return
        started = time.perf_counter()
        seen = follow(target, context, stats)
        tree, logits = propose_and_verify(target, proposer, context, seen, limit - stats.new_tokens - 1)
        choices = logits[:, : target.vocabulary].argmax(axis=1) if proposer.reads_choices else None
        in_doubt = target.recheck.doubts(sampler) if target.recheck else None
        accepted = accept(tree, logits[:, : target.vocabulary], sampler, context=context, branches=target.branches, in_doubt=in_doubt)
        if target.recheck and accepted.open:
            accepted = target.recheck.decide(target.model, sampler, context, seen, accepted, target.vocabulary)
            stats.rechecked += 1
        else:
            keep(target, accepted, seen)
        block = finish(target, accepted, sampler, context, limit, at_limit, stats)
        proposer.observe(Round(context, tree, accepted.path, choices))
        count(stats, proposer, tree, accepted, sum(block.drafted))
        stats.run_s = target.model.run_seconds + proposer.run_seconds - run_prefill
        stats.decode_s += time.perf_counter() - started
        yield block


def most_tokens(target: Target, prompt: int, wanted: int) -> tuple[int, FinishReason]:
    """How many tokens there can be, and the reason if that many come.

    The last rounds need room for the narrowest allowed pass. Counting for plain decoding, and letting speculation have no
    more, makes both end at the same token.
    """
    if target.rolling is not None:
        return wanted, "length"
    possible = target.model.capacity - prompt - target.widths.least_rows + 2
    if prompt > target.model.capacity or possible < 1:
        raise CapacityError(
            f"the prompt has {prompt} tokens and the cache holds {target.model.capacity}; shorten it, export or load with more "
            "context, or let the text be endless"
        )
    return (wanted, "length") if wanted <= possible else (possible, "capacity")


def prefill(target: Target, context: Sequence[int], stats: Stats) -> Floats | None:
    """Run the tokens that are not in the cache, in chunks; the logits [1, V] of the last one, None if it was stopped."""
    stats.reused_tokens = target.model.length
    while not target.stopped():
        logits = run_chunk(target, context)
        stats.prefill_passes += 1
        if target.model.length == len(context):
            return logits
    return None


def follow(target: Target, context: Sequence[int], stats: Stats) -> Sequence[int]:
    """What the target sees of the context. Where it has come to see less, rows behind the first ones are computed again."""
    seen = target.sees(context)
    dropped = len(context) - len(seen)
    if dropped != stats.dropped_tokens:
        stats.dropped_tokens = dropped
        target.model.keep_common(seen)
        while target.model.length < len(seen) - 1:
            run_chunk(target, seen[:-1])
        if target.recheck:
            target.recheck.clean = target.model.length
    return seen


def run_chunk(target: Target, context: Sequence[int]) -> Floats:
    """Run as many of the tokens that are not in the cache as one pass takes; the logits [1, V] of the last of them."""
    model, rule = target.model, target.prefill_widths
    while True:
        tokens = context[model.length : model.length + rule.widest_or_least(target.relief.widest)]
        room = model.capacity - model.length
        width = rule.fit(len(tokens), room)
        if width is None:  # Near the capacity there may be no room for so much padding.
            tokens = tokens[: rule.widest(min(room, len(tokens)))]
        try:
            return model.run(tokens, [len(tokens) - 1], width=width)
        except NO_MEMORY as error:
            target.relief.give_way(width or len(tokens), rule.widths[0], error)


def propose_and_verify(
    target: Target, proposer: Proposer, context: Sequence[int], seen: Sequence[int], limit: int
) -> tuple[DraftTree, Floats]:
    """A tree of at most ``limit`` nodes, and the logits [1 + n, V] of the last token and of its n nodes. ``seen`` is what the target
    sees of the context."""
    if target.rolling is not None:
        limit = min(limit, target.rolling.room(len(context)))
    while True:
        tree, width = propose(target, proposer, context, seen, limit)
        run_before = target.model.run_seconds
        try:
            logits = verify(target, seen, tree, width)
        except NO_MEMORY as error:
            target.relief.give_way(width, target.widths.widths[0], error)
            continue
        proposer.saw_pass(width, target.model.run_seconds - run_before, target.model.made_first_step)
        return tree, logits


def propose(target: Target, proposer: Proposer, context: Sequence[int], seen: Sequence[int], limit: int) -> tuple[DraftTree, int]:
    """A tree of at most ``limit`` nodes and the width of the pass that verifies it behind the pending tokens.

    Pending is the last token, and with it forced ones that no pass has seen yet.
    """
    model = target.model
    while True:
        room, pending = model.capacity - model.length, len(seen) - model.length
        widest = min(target.widths.widest(room), target.widths.widest_or_least(target.relief.widest))
        if pending <= widest and target.widths.fit(pending, room) is not None:
            break
        run_chunk(target, seen[:-1])
    tree = proposer.propose(context, min(limit, widest - pending))
    width = target.widths.fit(pending + len(tree), room) or widest
    return proposer.fill(context, tree, min(limit, width - pending) - len(tree)), width


def verify(target: Target, seen: Sequence[int], tree: DraftTree, width: int) -> Floats:
    """Logits [1 + n, V] of the last token and of the n nodes, in one pass."""
    pending = seen[target.model.length :]
    last = len(pending) - 1
    parents = None if tree.is_chain else (*range(-1, last), *(parent + 1 + last for parent in tree.parents))
    return target.model.run((*pending, *tree.tokens), range(last, last + 1 + len(tree)), parents, width)


def keep(target: Target, accepted: Accepted, seen: Sequence[int]) -> None:
    """Keep the cache rows of what the target has seen and of the accepted nodes."""
    target.model.keep_path(len(seen) - 1, (0, *(node + 1 for node in accepted.path)))


def finish(
    target: Target, accepted: Accepted, sampler: Sampler, context: list[int], limit: int, at_limit: FinishReason, stats: Stats
) -> Block:
    """Commit tokens one by one until a rule ends the text. What was accepted after that is dropped, from the cache too.

    Behind them come tokens that the sampler's grammar leaves no choice about; they need no pass of their own.
    """
    forced = sampler.forced(Text(context, accepted.tokens))
    reason: FinishReason | None = None
    tokens: list[int] = []
    for token in (*accepted.tokens, *forced):
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
    extra = max(len(tokens) - len(accepted.tokens), 0)
    stats.forced += extra
    target.model.keep(min(target.model.length, len(context) - stats.dropped_tokens - 1))
    return Block(tuple(tokens), drafted, extra, reason)


def count(stats: Stats, proposer: Proposer, tree: DraftTree, accepted: Accepted, committed: int) -> None:
    """Counters of a round, which committed the first ``committed`` of the accepted tokens."""
    stats.target_passes += 1
    stats.drafted += len(tree)
    stats.from_branches += sum(node != index for index, node in enumerate(accepted.path))
    stats.seeded = proposer.seeded
    stats.draft_passes = proposer.passes
    stats.rounds_by_draft_length[len(tree)] += 1
    depths = tree.depths()
    for node, depth in enumerate(depths):
        stats.drafted_by_drafter[proposer.author(node)][depth] += 1
    for node in accepted.path[:committed]:
        stats.accepted_by_drafter[proposer.author(node)][depths[node]] += 1
    stats.speculation_off = proposer.off
