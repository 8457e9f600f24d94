"""The n-gram drafter: continuations of text and corpus, their order, and what a miss costs."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from edgespec.errors import UsageError
from edgespec.runtime import Engine, load
from edgespec.runtime.drafters import corpus as corpora
from edgespec.runtime.drafters.corpus import Corpus, read_corpus
from edgespec.runtime.drafters.matches import LONGEST, MOST_MATCH, OCCURRENCES, TextIndex
from edgespec.runtime.drafters.ngram import SHORTEST, NGram
from edgespec.tree import DraftTree


def naive_matches(text: list[int], tail: list[int], longest: int) -> list[tuple[int, int]]:
    """Position behind each occurrence of the longest tail of at most ``longest`` tokens, the latest first, and how far it agrees."""
    for size in range(min(longest, len(tail)), 0, -1):
        ends = [end for end in range(len(text) - 1, size - 1, -1) if text[end - size : end] == tail[-size:]]
        if ends:
            agree = [max(n for n in range(1, min(MOST_MATCH, end, len(tail)) + 1) if text[end - n : end] == tail[-n:]) for end in ends]
            return list(zip(ends, agree, strict=True))
    return []


def naive_first_path(text: list[int], count: int) -> list[int]:
    """The most frequent continuation, counted by the square of the match, of equal ones the latest."""
    found = [(end, agree) for end, agree in naive_matches(text, text, LONGEST) if agree >= SHORTEST][:OCCURRENCES]
    ways = []
    for end, agree in found:
        more = list(text)
        for step in range(count):
            more.append(more[end + step])
        ways.append((more[len(text) :], agree**2))
    path: list[int] = []
    while ways and len(path) < count:
        weights: dict[int, int] = {}
        for tokens, weight in ways:
            weights[tokens[len(path)]] = weights.get(tokens[len(path)], 0) + weight
        best = max(weights, key=lambda token: weights[token])
        ways = [(tokens, weight) for tokens, weight in ways if tokens[len(path)] == best]
        path.append(best)
    return path


def first_path(tree: DraftTree) -> list[int]:
    node, path = -1, []
    while tree.children(node):
        node = tree.children(node)[0]
        path.append(tree.tokens[node])
    return path


def test_it_equals_a_search_on_growing_texts() -> None:
    rng = np.random.default_rng(0)
    found = branches = 0
    for _ in range(20):
        drafter, text = NGram(), rng.integers(0, 4, 3).tolist()
        for _ in range(40):
            text.extend(rng.integers(0, 4, rng.integers(1, 4)).tolist())
            tree = drafter.propose(text, 6)
            expected = naive_first_path(text, 6)
            path = first_path(tree)
            assert path == expected[: len(path)]
            assert bool(path) == bool(expected)
            assert tree.tokens[: len(path)] == tuple(path), "the first path lies side by side"
            assert len(tree) == 6 or not path
            found += bool(path)
            branches += not tree.is_chain
            for node in range(len(tree)):
                assert len({tree.tokens[child] for child in tree.children(node)}) == len(tree.children(node))
    assert found > 400
    assert branches > 100


def test_one_way_is_a_chain_and_goes_round_in_a_loop() -> None:
    assert NGram().propose([9, 1, 2, 1, 2], 6) == DraftTree.chain([1, 2, 1, 2, 1, 2])


def test_the_most_frequent_way_comes_first_and_the_latest_of_equals() -> None:
    def ways(text: list[int], count: int) -> list[int]:
        tree = NGram().propose(text, count)
        return [tree.tokens[child] for child in tree.children(-1)]

    assert ways([1, 2, 5, 3, 1, 2, 6, 4, 1, 2, 5, 8, 1, 2, 7, 9, 1, 2], 9) == [5, 7, 6]
    assert ways([1, 2, 5, 0, 1, 2, 6, 9, 1, 2], 3) == [6, 5]
    # A longer match outweighs two shorter ones.
    assert first_path(NGram().propose([3, 4, 1, 2, 5, 0, 1, 2, 6, 9, 1, 2, 6, 0, 3, 4, 1, 2], 1)) == [5]


def test_where_branches_cannot_commit_they_come_later() -> None:
    text = [1, 2, 5, 5, 5, 0, 1, 2, 6, 6, 6, 9, 1, 2]
    assert NGram(branches=True).propose(text, 2) == DraftTree((6, 5), (-1, -1))
    assert NGram(branches=False).propose(text, 2) == DraftTree((6, 6), (-1, 0))


class Cautious:
    """A gate that wants to be sure."""

    def __init__(self, least: float) -> None:
        self.least = least
        self.heard: list[float] = []

    def keeps(self, confidence: float) -> bool:
        self.heard.append(confidence)
        return confidence >= self.least

    def goes_on(self) -> bool:
        return True


def test_the_gate_is_told_how_sure_it_is() -> None:
    long, short = [7, 8, 9, 1, 2, 3, 4, 5, 0, 7, 8, 9, 1, 2, 3], [1, 2, 5, 0, 1, 2, 6, 9, 1, 2]
    gate = Cautious(0.8)
    assert NGram(gate=gate).propose(long, 3).tokens == (4, 5, 0)
    assert gate.heard == pytest.approx([6 / 7, 7 / 8, 8 / 9])
    assert len(NGram(gate=Cautious(0.8)).propose(short, 3)) == 0
    tree = NGram(gate=Cautious(0.3)).propose(short, 6)
    assert first_path(tree)[0] == 6
    assert len(tree.children(-1)) == 2, "the other way is worth as much as what the gate let through"


@pytest.mark.parametrize("text", [[], [1], [1, 1], [1, 2, 3, 4]])
def test_misses(text: list[int]) -> None:
    assert len(NGram().propose(text, 4)) == 0


def test_guesses_look_ahead_of_the_text() -> None:
    assert NGram().look_up([1, 2, 3, 4, 5, 8], [2, 3], 3, 2) == [4, 5, 8]
    assert NGram().look_up([1, 2, 3, 4, 5, 8], [3], 2, 2) == []
    assert NGram().look_up([1, 2, 3, 4, 5, 8], [3], 2, 1) == [4, 5]
    assert NGram().look_up([1, 2, 3, 1, 2], [], 0, 1) == []


def test_the_index_equals_a_search() -> None:
    rng = np.random.default_rng(1)
    index, text = TextIndex(), rng.integers(0, 3, 200).tolist()
    for size in range(2, 200, 7):
        index.extend(text[:size])
        expected = list(naive_matches(text[:size], text[:size], LONGEST))[:OCCURRENCES]
        assert [(match.position, match.length) for match in index.matches(text[:size], 1)] == expected


@pytest.mark.parametrize("bits", [2, 16, 18, 30])
def test_a_corpus_equals_a_search(bits: int) -> None:
    rng = np.random.default_rng(2)
    top = min(4, 2**bits)
    tokens = rng.integers(0, top, 300) + (2**bits - top)  # the largest ids there are
    corpus = Corpus.of(tokens.astype(np.int32), bits)
    assert corpus.size == {2: 4, 16: 4, 18: 3, 30: 2}[bits]
    hits = 0
    for _ in range(200):
        tail = (rng.integers(0, top, 6) + (2**bits - top)).tolist()
        expected = dict(naive_matches(tokens.tolist(), tail, corpus.size))
        found = corpus.matches(tail, 1)
        assert {match.position for match in found} <= set(expected)
        assert all(match.length == expected[match.position] for match in found)
        assert len(found) <= OCCURRENCES
        # Of a few places all are found. One at the very end has nothing behind it, and the last few have no key.
        whole = {end for end in expected if end <= len(tokens) - corpus.size}
        assert len(expected) > OCCURRENCES or whole <= {match.position for match in found}
        hits += bool(found)
    assert hits == 200
    assert corpus.matches([2**bits], 1) == []
    assert corpus.matches([], 1) == []
    assert [match.length for match in corpus.matches(tokens[5:12].tolist(), 7)] == [7] * len(corpus.matches(tokens[5:12].tolist(), 7))
    assert Corpus.of(np.zeros(1, np.int32), bits).matches([0], 1) == []


def test_a_proposal_comes_from_the_corpus_where_it_knows_more() -> None:
    corpus = Corpus.of(np.array([1, 2, 3, 4, 5, 6, 7, 8], np.int32), 16)
    assert first_path(NGram(corpus).propose([9, 2, 3, 4], 3)) == [5, 6, 7]
    assert first_path(NGram(corpus).propose([2, 3, 4, 9, 2, 3, 4], 1)) == [9], "the text itself counts for more"
    assert first_path(NGram(corpus).propose([3, 4, 9, 1, 2, 3, 4], 1)) == [5], "and a longer match most"
    assert len(NGram(corpus).propose([9, 9, 8, 4], 3)) == 0


def test_misses_are_cheap() -> None:
    """Microseconds: a hundredth of a millisecond leaves room for a busy machine."""
    rng = np.random.default_rng(0)
    corpus = Corpus.of(rng.integers(0, 1000, 500_000).astype(np.int32), 16)
    drafter, text = NGram(corpus), list(range(2000, 3000))
    drafter.propose(text, 4)
    times = []
    for token in range(3000, 3300):
        text.append(token)
        started = time.perf_counter()
        assert len(drafter.propose(text, 4)) == 0
        times.append(time.perf_counter() - started)
    assert sorted(times)[len(times) // 4] < 1e-4


def test_a_file_is_read_once(tmp_path: Path, attention: Engine, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("the cat sat on the mat\nthe dog lay on the rug\n" * 40, encoding="utf-8")
    monkeypatch.setattr(corpora, "PIECE", 100)
    first = read_corpus(file, attention.tokenizer)
    assert bytes(first.tokens.tolist()) == file.read_bytes()  # the tokenizer's ids are bytes
    (stored,) = cache.glob("corpus-*.bin")
    monkeypatch.setattr(Corpus, "of", lambda *_: pytest.fail("indexed again"))
    again = read_corpus(file, attention.tokenizer)
    assert isinstance(again.tokens.base, np.memmap)
    tail = list(b"xx the cat sat on ")
    assert [match[1:] for match in again.matches(tail, 2)] == [match[1:] for match in first.matches(tail, 2)] != []
    monkeypatch.undo()
    stored.write_bytes(stored.read_bytes()[:-5])
    assert len(read_corpus(file, attention.tokenizer).matches(tail, 2)) > 0, "a damaged index is made anew"
    monkeypatch.setenv("EDGESPEC_CACHE", "/proc/nowhere")
    assert len(read_corpus(file, attention.tokenizer).matches(tail, 2)) > 0, "and one that cannot be stored is in memory"


def test_old_indexes_are_forgotten(tmp_path: Path, attention: Engine, cache: Path) -> None:
    file = tmp_path / "notes.txt"
    for edit in range(corpora.KEPT + 3):
        file.write_text(f"note {edit}: the cat sat on the mat\n" * 5, encoding="utf-8")
        read_corpus(file, attention.tokenizer)
    assert len(list(cache.glob("corpus-*.bin"))) == corpora.KEPT


def test_it_speeds_up_what_the_corpus_knows(tmp_path: Path, attention_bundle: Path) -> None:
    with load(attention_bundle, threads=1) as engine:
        plain = engine.generate("hello", drafter="none", max_new_tokens=40, ignore_eos=True)
    file = tmp_path / "known.txt"
    text = bytes(token for token in plain.token_ids if token < 128)
    file.write_bytes(text)
    tokens = plain.token_ids
    with load(attention_bundle, threads=1, ngram_corpus=file) as engine:
        assert bytes(engine._drafting.corpus.tokens.tolist()) == text  # type: ignore[union-attr]
        engine._drafting.corpus = Corpus.of(np.asarray(tokens, np.int32), 9)
        for exactness in ("exact", "fast"):
            found = engine.generate("hello", drafter="ngram", draft_length=7, max_new_tokens=40, ignore_eos=True, exactness=exactness)
            assert found.token_ids == plain.token_ids
            assert found.stats.tokens_per_pass > 2


@pytest.mark.parametrize(
    ("data", "message"),
    [(None, "cannot be read: No such file"), (b"\xff\xfe", "not a text in UTF-8: byte 0"), (b"x" * 200, "has 200 bytes; at most 100")],
)
def test_files_that_are_no_corpus(
    tmp_path: Path, attention_bundle: Path, data: bytes | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpora, "MOST_BYTES", 100)
    file = tmp_path / "file"
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(UsageError, match=message) as caught:
        load(attention_bundle, ngram_corpus=file)
    assert str(file) in str(caught.value)
