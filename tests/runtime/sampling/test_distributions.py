"""Sampled text has the distribution of plain sampling, whichever drafter is on and whatever it proposes.

The expected distribution of texts of three tokens is computed exactly, by a second and naive implementation of every
processor (``plain_next``). Found counts are held against it by Pearson's chi-square and by total variation, for the first
token and for the whole text. False alarms: each of the four figures of a cell exceeds its limit by chance once in a million
(chi-square, asymptotically; total variation by a bound that holds for any sample size), so that the 16 x 15 x 3 cells of the slow
table together raise one in about 350 runs with fresh seeds. Seeds are fixed, so there are none in practice.

    python -m tests.runtime.sampling.test_distributions      prints the table
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from edgespec.distribution import Distribution
from edgespec.runtime.drafters import Drafter
from edgespec.runtime.drafters.draft_model import DraftModel
from edgespec.runtime.drafters.eagle import Eagle, EagleCache
from edgespec.runtime.drafters.lookahead import Lookahead, Window
from edgespec.runtime.drafters.medusa import Medusa
from edgespec.runtime.drafters.ngram import NGram
from edgespec.runtime.drafters.proposer import Proposer, Source
from edgespec.runtime.drafters.tree import TokenTree, TreeOptions
from edgespec.runtime.drafters.tree_cache import TreeCache
from edgespec.runtime.drafters.universal import SharedTokensDraft
from edgespec.runtime.loop import Target, generate_blocks
from edgespec.runtime.models.token_map import TokenMap
from edgespec.runtime.options import GenerationOptions
from edgespec.runtime.sampling import sampling
from edgespec.runtime.sampling.processors import Text
from edgespec.runtime.sampling.sampling import Sampler, draw_several, make_sampler
from edgespec.runtime.stats import Stats
from edgespec.runtime.text.translate import SharedIds, Translator
from edgespec.runtime.tuning.controller import FixedLength
from edgespec.tree import DraftTree
from tests.helpers import tables

SIZE, EOS, LENGTH = 8, 7, 3
PROMPT = [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
BIAS = {2: 1.5, 5: -2.0}

PROCESSORS: dict[str, dict[str, Any]] = {
    "none": {},
    "temperature": {"temperature": 0.6},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.15},
    "typical_p": {"typical_p": 0.7},
    "repetition_penalty": {"repetition_penalty": 1.6},
    "presence_penalty": {"presence_penalty": 1.2},
    "frequency_penalty": {"frequency_penalty": 0.9},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "logit_bias": {"logit_bias": BIAS},
    "banned_tokens": {"banned_tokens": (2, 6)},
    "forced_tokens": {"forced_tokens": (4,)},
    "min_new_tokens": {"min_new_tokens": 2},
    "everything": {
        "temperature": 1.3, "top_k": 6, "top_p": 0.95, "min_p": 0.02, "typical_p": 0.95, "repetition_penalty": 1.2, "presence_penalty": 0.3,
        "frequency_penalty": 0.4, "no_repeat_ngram_size": 3, "logit_bias": BIAS, "banned_tokens": (6,), "min_new_tokens": 2,
    },
}  # fmt: skip
LEVELS = ("low", "middle", "full")
MODELLED = ("lookahead", "eagle", "medusa")
SCORED = (0, 1, 3, 4, 6, 7)  # tokens of a head with a reduced vocabulary


def target_table(level: str) -> np.ndarray:
    """Logits whose successor (t + 1) % 4, which n-grams of the prompt propose, is rare, likely or nearly sure."""
    logits = np.random.default_rng(3).normal(scale=1.2, size=(SIZE, SIZE))
    for token in range(SIZE):
        logits[token, (token + 1) % 4] = {"low": -2.5, "middle": 2.2, "full": 5.0}[level]
    return logits


def draft_table(level: str) -> np.ndarray:
    """The target itself, something like it, or nearly its opposite."""
    target = target_table(level)
    noise = np.random.default_rng(4).normal(size=target.shape)
    return {"low": -target + noise, "middle": target + noise, "full": target}[level]


def plain_next(level: str, options: dict[str, Any], text: Sequence[int]) -> np.ndarray:
    """p [V] after PROMPT and ``text``, computed as slowly and plainly as can be."""
    whole = [*PROMPT, *text]
    scores = [float(score) for score in target_table(level)[whole[-1]].astype(np.float32)]
    for token in range(SIZE):
        scores[token] += options.get("logit_bias", {}).get(token, 0.0)
        if token in whole:
            penalty = options.get("repetition_penalty", 1.0)
            scores[token] = scores[token] / penalty if scores[token] > 0 else scores[token] * penalty
        scores[token] -= options.get("presence_penalty", 0.0) * (token in text)
        scores[token] -= options.get("frequency_penalty", 0.0) * list(text).count(token)
        size = options.get("no_repeat_ngram_size", 0)
        if size and (*whole[len(whole) - size + 1 :], token) in tables.ngrams(whole, size):
            scores[token] = -math.inf
        if token in options.get("banned_tokens", ()) or (token == EOS and len(text) < options.get("min_new_tokens", 0)):
            scores[token] = -math.inf
    forced = options.get("forced_tokens", ())
    if len(text) < len(forced):
        return np.eye(SIZE)[forced[len(text)]]
    p = np.exp(np.array(scores) / options.get("temperature", 1.0))
    p /= p.sum()
    order = sorted(range(SIZE), key=lambda token: (-p[token], token))
    for token in order[options.get("top_k", SIZE) :]:
        p[token] = 0
    p /= p.sum()
    p = keep_share(p, order, options.get("top_p", 1.0))
    p[p < options.get("min_p", 0.0) * p.max()] = 0
    p /= p.sum()
    entropy = -sum(share * math.log(share) for share in p if share > 0)
    order = sorted((token for token in range(SIZE) if p[token] > 0), key=lambda token: abs(-math.log(p[token]) - entropy))
    return keep_share(p, order, options.get("typical_p", 1.0))


def keep_share(p: np.ndarray, order: Sequence[int], share: float) -> np.ndarray:
    kept, total = np.zeros(SIZE), 0.0
    for token in order:
        kept[token] = p[token]
        total += p[token]
        if total > share and share < 1.0:
            break
    return kept / kept.sum()


class Trees(Drafter):
    """Draws a tree of two levels from a table: three candidates, and two behind each."""

    name = "trees"

    def __init__(self, table: np.ndarray, sampler: Sampler, rng: np.random.Generator, replacement: bool | None) -> None:
        self.table = table.astype(np.float32)
        self.sampler, self.rng, self.replacement = sampler, rng, replacement

    def candidates(self, context: Sequence[int], ahead: Sequence[int], count: int) -> list[tuple[int, Distribution | None]]:
        token = ahead[-1] if ahead else context[-1]
        _, q = self.sampler.draft(self.table[token], Text(context, ahead))
        if self.replacement is None:
            best = np.argsort(-self.table[token])[:count]
            return [(int(choice), None) for choice in best]
        assert q is not None
        return draw_several(q, count, self.rng.random, replacement=self.replacement)

    def propose(self, context: Sequence[int], max_tokens: int) -> DraftTree:
        tokens: list[int] = []
        parents: list[int] = []
        q: list[Distribution | None] = []
        first = self.candidates(context, (), 3)
        for token, drawn_from in first:
            tokens.append(token)
            parents.append(-1)
            q.append(drawn_from)
        for parent, (token, _) in enumerate(first):
            for behind, drawn_from in self.candidates(context, (token,), 2):
                tokens.append(behind)
                parents.append(parent)
                q.append(drawn_from)
        return DraftTree(tuple(tokens), tuple(parents), tuple(q)) if len(tokens) <= max_tokens else DraftTree()


class Threshold:
    """A gate that wants tokens and steps while the draft is sure enough. It sees the distribution, not what was drawn from it."""

    def __init__(self) -> None:
        self.confidence = 1.0

    def keeps(self, confidence: float) -> bool:
        self.confidence = confidence
        return confidence > 0.35

    def goes_on(self) -> bool:
        return self.confidence > 0.45


def other_draft(level: str) -> tuple[Any, Translator]:
    """A draft with ids of its own: it lacks the target's token 4 and has one that the target lacks."""
    ids = np.array([3, 0, -1, 1, 2, 7, 6, 5])
    rows = draft_table(level)[ids]
    table = rows[:, ids] + np.where(ids < 0, 1.0, 0.0)
    return tables.TableModel(table), Translator(None, None, SharedIds(ids, SIZE))  # type: ignore[arg-type]


def make_source(name: str, level: str, sampler: Sampler, rng: np.random.Generator, target: Target) -> Source:
    if name == "ngram":
        return Source(NGram(), FixedLength(3))
    if name == "other vocabulary":
        return Source(SharedTokensDraft(*other_draft(level), sampler.draft), FixedLength(2))
    if name.startswith("draft"):
        gate = Threshold() if name.endswith("gated") else None
        return Source(DraftModel(tables.TableModel(draft_table(level)), SIZE, sampler.draft, gate), FixedLength(2))  # type: ignore[arg-type]
    if name == "lookahead":
        return Source(Lookahead(Window(2, 3, 2)), FixedLength(8))
    if name.startswith("token tree"):
        tables_ = [draft_table(level), draft_table("low")] if name.endswith("two drafts") else [draft_table(level)]
        options = TreeOptions(sampler.draft_several, sampler.draws)
        caches = [TreeCache(tables.TableModel(table)) for table in tables_]  # type: ignore[arg-type]
        return Source(TokenTree(caches, SIZE, options), FixedLength(6))
    if name.startswith("eagle"):
        head = tables.TableHead(draft_table(level)[:, SCORED])
        cache = EagleCache(head, lambda: np.zeros((target.model.length, 1), np.float32), TokenMap(np.array(SCORED), SIZE))  # type: ignore[arg-type]
        return Source(Eagle(cache, SIZE, TreeOptions(sampler.draft_several, sampler.draws)), FixedLength(6))
    if name == "medusa":
        heads = tables.TableHeads(draft_table(level), heads=3)
        features = lambda: np.array(target.model.tokens, np.float32)[:, None]  # noqa: E731
        return Source(Medusa(heads, features), FixedLength(6))  # type: ignore[arg-type]
    replacement = {"tree, with replacement": True, "tree, without": False, "tree, chosen": None}[name]
    return Source(Trees(draft_table(level), sampler, rng, replacement), FixedLength(16))


DRAFTERS = (
    "none", "ngram", "draft, match", "draft, ratio", "draft, gated", "other vocabulary",
    "tree, with replacement", "tree, without", "tree, chosen",
    "token tree, match", "token tree, ratio", "token tree, two drafts", "lookahead", "eagle, match", "eagle, ratio", "medusa",
)  # fmt: skip


def sample(name: str, processor: str, level: str, count: int, seed: int = 0) -> tuple[Counter[tuple[int, ...]], float]:
    """Counts of ``count`` texts, and the share of drafted tokens that were accepted."""
    acceptance = "match" if name.endswith("match") else "ratio"
    extra = 9 if "tree" in name or name.startswith(MODELLED) else 0
    options = GenerationOptions(do_sample=True, acceptance=acceptance, max_new_tokens=LENGTH, **PROCESSORS[processor])
    rng = np.random.default_rng(seed)
    target = tables.table_target(target_table(level), [EOS])
    found: Counter[tuple[int, ...]] = Counter()
    stats = Stats()
    for _ in range(count):
        target.model.keep(0)
        sampler = make_sampler(options, prompt_length=len(PROMPT), eos_ids=[EOS])
        sampler._rng = rng
        proposer = Proposer([] if name == "none" else [make_source(name, level, sampler, rng, target)])
        context = list(PROMPT)
        stats.new_tokens = 0
        # The limit is what the loop drafts up to: a tree needs room for all of its nodes, so the text is cut here.
        for _block in generate_blocks(target, proposer, sampler, context, LENGTH + extra, stats):
            if len(context) >= len(PROMPT) + LENGTH:
                break
        text = tuple(context[len(PROMPT) : len(PROMPT) + LENGTH])
        found[text] += 1
    return found, stats.accepted / max(stats.drafted, 1)


def misses(name: str, processor: str, level: str, count: int, seed: int = 0) -> tuple[list[str], float, float]:
    """The figures beyond their limits, the total variation of whole texts, and the share of accepted tokens."""
    expected = tables.exact_sequences(lambda text: plain_next(level, PROCESSORS[processor], text), LENGTH, EOS)
    found, accepted = sample(name, processor, level, count, seed)
    wrong = [f"{text} cannot be" for text in found if text not in expected]
    for length in (1, LENGTH):
        shares, counts = tables.prefix_shares(expected, length), tables.prefixes(found, length)
        statistic, degrees = tables.chi_square(shares, counts)
        if statistic > tables.chi_square_limit(degrees):
            wrong.append(f"chi-square of {length}: {statistic:.0f} with {degrees} degrees of freedom")
        variation = tables.total_variation(shares, counts)
        if variation > tables.total_variation_limit(shares, count):
            wrong.append(f"total variation of {length}: {variation:.3f}")
    return wrong, tables.total_variation(expected, found), accepted


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_processor(name: str) -> None:
    # Those with a model of their own take longer; the slow table has all.
    for processor in ("none", "top_k", "everything") if name.startswith(("token tree", *MODELLED)) else PROCESSORS:
        assert misses(name, processor, "middle", 250)[0] == [], processor


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", DRAFTERS)
def test_every_processor_at_every_acceptance(name: str, level: str) -> None:
    for processor in PROCESSORS:
        assert misses(name, processor, level, 3000, seed=1)[0] == [], processor


def test_acceptance_is_as_low_and_as_high_as_designed() -> None:
    def shares(name: str) -> list[float]:
        return [sample(name, "none", level, 300)[1] for level in LEVELS]

    low, middle, full = shares("draft, ratio")
    assert low < 0.3 < middle < 0.9
    assert full == 1.0
    low, middle, full = shares("ngram")
    assert low < 0.05 < 0.15 < middle < 0.6 < full


def test_drawing_drafts_accepts_more_than_choosing_them() -> None:
    assert sample("draft, ratio", "none", "middle", 400)[1] > sample("draft, match", "none", "middle", 400)[1] + 0.05
    assert sample("tree, without", "none", "middle", 400)[1] >= sample("tree, with replacement", "none", "middle", 400)[1]


@pytest.mark.parametrize("fault", ["accepts everything", "draws from p after a refusal", "forgets the block", "q of the first for all"])
def test_these_tests_find_a_wrong_rule(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = sampling.reject_recursively

    def wrong(p: Distribution, candidates: Any, uniform: Callable[[], float]) -> int:
        if fault == "accepts everything":
            return int(candidates[0][0])
        if fault == "draws from p after a refusal":
            token, q = candidates[0]
            return token if uniform() * q.probability(token) < p.probability(token) else p.draw(uniform())
        return right(p, [(token, candidates[0][1]) for token, _ in candidates], uniform)

    name, processor = "draft, ratio", "none"
    if fault == "forgets the block":
        name, processor = "draft, match", "no_repeat_ngram_size"
        call = Sampler.__call__
        monkeypatch.setattr(Sampler, "__call__", lambda self, row, text, more: call(self, row, Text(text.context), more))
    else:
        name, processor = ("tree, without", "top_k") if fault.startswith("q of") else (name, processor)
        monkeypatch.setattr(sampling, "reject_recursively", wrong)
    assert misses(name, processor, "low" if fault == "draws from p after a refusal" else "middle", 4000)[0]


if __name__ == "__main__":
    import sys

    count = int(sys.argv[1]) if len(sys.argv) > 1 else 6000
    print(
        f"Total variation of {count} texts of {LENGTH} tokens from exact enumeration (share of drafted tokens accepted), ! beyond a limit"
    )
    print("| drafter | acceptance | " + " | ".join(PROCESSORS) + " |")
    print("|---" * (2 + len(PROCESSORS)) + "|")
    for name in DRAFTERS:
        for level in LEVELS:
            cells = []
            for processor in PROCESSORS:
                wrong, variation, accepted = misses(name, processor, level, count, seed=1)
                cells.append(f"{variation:.3f} ({accepted:.0%}){'!' if wrong else ''}")
            print(f"| {name} | {level} | " + " | ".join(cells) + " |", flush=True)
