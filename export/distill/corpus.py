"""The data-free corpus: the target asks itself questions, answers them, and is asked about its answers.

It grows shard by shard. A shard depends on the settings and its number alone, so one that was cut short is made again with the same
result, and several processes make different ones. Shard 0 is held out: its answers are the target's most likely ones, and drafts are
judged on them.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from edgespec.errors import UsageError
from edgespec.export.distill import questions
from edgespec.export.distill.config import DistillConfig
from edgespec.export.distill.continuous_batching import Request, Text
from edgespec.export.distill.questions import Answer, Prompt
from edgespec.export.distill.repetition import before_loop, distinct, is_repetitive
from edgespec.export.distill.shards import Entry, Shard
from edgespec.export.distill.target import Target
from edgespec.export.distill.workplace import Workplace

HELD = 0  # the shard that nothing is trained on
HELD_SHARE = 4  # it has a fourth of the texts of the others: it takes time to write and, again and again, to judge on
LEAST_TEXTS = 32  # of a shard, where shards are not smaller anyway
HELD_OUT = 10  # of the user's own prompts and texts every so many is held out
QUESTION_TOKENS = 40
LEAST_ANSWER = 8  # tokens; shorter ones teach nothing
CHUNK = 256  # tokens of a piece of the user's texts
ASKING, ANSWERING, FOLLOWING, TASKS = range(4)  # purposes of random numbers
REASONS = ("looping", "repetitive", "short", "too long")


Piece = tuple[int, ...]
"""Tokens of the user's text."""


@dataclasses.dataclass(frozen=True)
class Own:
    """What the user gives, in order: prompts to answer, then pieces of text."""

    items: tuple[Prompt | Piece, ...] = ()

    @classmethod
    def read(cls, config: DistillConfig, target: Target) -> Own:
        """Raises:
        UsageError: a file cannot be read or is malformed.
        """
        items: list[Prompt | Piece] = list(questions.read_user_prompts(config.prompts)) if config.prompts is not None else []
        for path in config.texts:
            tokens = target.tokenizer.encode(questions.read_text("--text", path), prefix=True)
            if len(tokens) < LEAST_ANSWER:
                raise UsageError(f"--text {path}: has no text")
            chunk = min(CHUNK, target.model.capacity)
            pieces = (tuple(tokens[at : at + chunk]) for at in range(0, len(tokens), chunk))
            items += [piece for piece in pieces if len(piece) >= LEAST_ANSWER]
        return cls(tuple(items))

    def of_shard(self, shard: int, size: int, usual: int) -> tuple[list[Prompt], list[Piece]]:
        """Its part of a shard of ``size`` texts, where those before it have as many as is ``usual``: the first shards are the user's as far
        as it reaches. A prompt is two texts, a likely answer and a drawn one."""
        if shard == HELD:
            chosen = self.items[HELD_OUT - 1 :: HELD_OUT]
        else:
            rest = [item for index, item in enumerate(self.items) if index % HELD_OUT != HELD_OUT - 1]
            chosen = tuple(rest[(shard - 1) * (usual // 2) :])
        chosen = chosen[: size // 2]
        return [item for item in chosen if isinstance(item, Prompt)], [item for item in chosen if not isinstance(item, Prompt)]


class Writer:
    """Writes shards with a target."""

    def __init__(self, target: Target, config: DistillConfig, own: Own) -> None:
        self._target = target
        self._config = config
        self._own = own

    def shard(self, number: int, size: int | None = None) -> tuple[list[Entry], dict[str, Any]]:
        """Texts and statistics of a shard of ``size`` texts, as many as it usually has unless given."""
        usual = self._config.shard_texts
        size = size or texts_of(number, usual)
        own, pieces = self._own.of_shard(number, size, usual)
        twice = [] if number == HELD else [dataclasses.replace(prompt, temperature=1.0) for prompt in own]
        left = size - len(own) - len(twice) - len(pieces)
        dropped: Counter[str] = Counter()
        prompts, asked = self._prompts(number, left)
        first = self._answer([*own, *twice, *prompts], (number, ANSWERING), dropped)
        answers = [Answer(prompt, self._target.tokenizer.decode(entry.text.tokens[entry.text.start :].tolist())) for prompt, entry in first]
        follow = self._follow_ups(number, round(left * questions.ABOUT_ANSWERS), answers)
        entries = [entry for _, entry in [*first, *self._answer(follow, (number, FOLLOWING), dropped)]]
        entries += self._pieces(pieces)
        return entries, _statistics(entries, dropped, asked)

    def _prompts(self, shard: int, count: int) -> tuple[list[Prompt], list[str]]:
        """Prompts of the target's own asking and tasks, and the questions among them."""
        rng = questions.rng_of(self._config.seed, shard, TASKS)
        if self._target.template is None:
            return [self._drawn(questions.plain(rng), rng, shard) for _ in range(count)], []
        asked = self._ask(shard, round(count * questions.ASKED)) if self._target.asks else []
        others = count - round(count * questions.ABOUT_ANSWERS) - len(asked)
        prompts = [Prompt("self-asked", (question,)) for question in asked]
        prompts += [questions.task(rng) for _ in range(max(others, 0))]
        return [self._drawn(prompt, rng, shard) for prompt in prompts], asked

    def _drawn(self, prompt: Prompt, rng: np.random.Generator, shard: int) -> Prompt:
        temperature = questions.temperature(rng)
        return prompt if shard == HELD else dataclasses.replace(prompt, temperature=temperature)

    def _ask(self, shard: int, count: int) -> list[str]:
        """Questions that the target asks itself, each once."""
        rng = questions.rng_of(self._config.seed, shard, ASKING)
        starts = [self._target.question(questions.opener(rng)) for _ in range(count)]
        seeds = [(self._config.seed, shard, ASKING, index) for index in range(count)]
        most = min(QUESTION_TOKENS, self._config.answer_tokens)
        requests = [Request(start, len(start), most, 1.0, seed) for start, seed in zip(starts, seeds, strict=True)]
        texts = self._target.write(requests, questions=True)
        head = len(self._target.question(""))
        found = [self._target.tokenizer.decode(text.tokens[head:].tolist()).strip() for text in texts if text.end != "loop"]
        return list(dict.fromkeys(question for question in found if question))

    def _follow_ups(self, shard: int, count: int, answers: Sequence[Answer]) -> list[Prompt]:
        rng = questions.rng_of(self._config.seed, shard, FOLLOWING)
        if not answers or self._target.template is None:
            return []
        return [self._drawn(questions.about_answers(rng, answers), rng, shard) for _ in range(count)]

    def _answer(self, prompts: Sequence[Prompt], purpose: tuple[int, int], dropped: Counter[str]) -> list[tuple[Prompt, Entry]]:
        """The answers that are worth keeping."""
        most = self._config.answer_tokens
        kept, requests = [], []
        for index, prompt in enumerate(prompts):
            tokens = self._target.encode(prompt.turns)
            if not tokens or len(tokens) + most > self._target.model.capacity:
                dropped["too long"] += 1
                continue
            kept.append(prompt)
            requests.append(Request(tokens, len(tokens), most, prompt.temperature, (self._config.seed, *purpose, index)))
        found = []
        for prompt, text in zip(kept, self._target.write(requests), strict=True):
            usable, reason = _usable(text)
            if reason:
                dropped[reason] += 1
            if usable is not None:
                single = prompt.turns[0] if len(prompt.turns) == 1 else ""
                found.append((prompt, Entry(usable, prompt.category, prompt.temperature == 0, single)))
        return found

    def _pieces(self, pieces: Sequence[Piece]) -> list[Entry]:
        requests = [Request(piece, 1) for piece in pieces]
        return [Entry(text, "text", False) for text in self._target.write(requests)]


def _usable(text: Text) -> tuple[Text | None, str]:
    """The part of an answer that is worth keeping, and what is wrong with it."""
    answer = text.tokens[text.start :].tolist()
    reason = ""
    if text.end == "loop":
        reason = "looping"
        answer = answer[: before_loop(answer)]
    if len(answer) < LEAST_ANSWER:
        return None, reason or "short"
    if is_repetitive(answer):
        return None, reason or "repetitive"
    return text.shortened(text.start + len(answer)), reason


def _statistics(entries: Sequence[Entry], dropped: Counter[str], asked: Sequence[str]) -> dict[str, Any]:
    tokens: Counter[str] = Counter()
    for entry in entries:
        tokens[entry.category] += len(entry.text.tokens) - entry.text.start
    answers = [token for entry in entries for token in entry.text.tokens[entry.text.start :].tolist()]
    return {
        "texts": len(entries),
        "greedy": sum(entry.greedy for entry in entries),
        "ended": sum(entry.text.end == "end" for entry in entries),
        "tokens": dict(sorted(tokens.items())),
        "distinct_4grams": round(distinct(answers), 4),
        "distinct_tokens": len(set(answers)),
        "questions": len(asked),
        **{reason: dropped[reason] for reason in REASONS},
    }


def texts_of(number: int, usual: int) -> int:
    """Texts of a shard where those that are trained on have ``usual``."""
    return min(usual, max(usual // HELD_SHARE, LEAST_TEXTS)) if number == HELD else usual


def grow_corpus(
    work: Workplace,
    writer: Writer,
    config: DistillConfig,
    *,
    rank: int,
    processes: int,
    deadline: float | None,
    on_shard: Callable[[Shard], None],
) -> None:
    """Write this process's shards, number ``rank`` and every ``processes``-th after it, until there is enough.

    Enough is ``config.tokens`` answer tokens in the shards from 1 on without a gap, or as many as fit before ``deadline``
    (:func:`time.monotonic`); the held-out shard and one more are always made. The last one before the deadline has as many texts as
    there is time for, by the pace of the one before.
    """
    number, pace = rank, 0.0
    while not _enough(work, config, number, None if deadline is None else deadline - pace * LEAST_TEXTS / 2):
        if number not in work.shards():
            started, size = time.monotonic(), texts_of(number, config.shard_texts)
            if deadline is not None and pace:
                size = min(size, max(int((deadline - started) / pace), LEAST_TEXTS))
            entries, statistics = writer.shard(number, size)
            work.write_shard(number, entries, statistics, config.space)
            pace = (time.monotonic() - started) / size
            on_shard(work.read_shard(number))
        number += processes


def _enough(work: Workplace, config: DistillConfig, number: int, deadline: float | None) -> bool:
    if number in (HELD, HELD + 1):
        return False
    if deadline is not None:
        return time.monotonic() > deadline
    assert config.tokens is not None
    shards = work.shards()
    whole = work.corpus(config.tokens)
    return whole is not None or (sum(work.answer_tokens(n) for n in shards if n != HELD) >= config.tokens and number > max(shards))
