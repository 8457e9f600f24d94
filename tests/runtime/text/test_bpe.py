"""The tokenizer in plain Python: ids and texts equal to those of ``tokenizers``, in every style; what it does not know is refused."""

from __future__ import annotations

import functools
import itertools
import json
import random
import re
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from edgespec.errors import BundleError, UsageError
from edgespec.manifest import TokenizerSpec
from edgespec.runtime.text.bpe import BpeTokenizer, UnsupportedTokenizer
from edgespec.runtime.text.bpe.characters import LAST, complement, ranges_of
from edgespec.runtime.text.bpe.patterns import compile_pattern
from edgespec.runtime.text.tokenizer import Tokenizer
from tests.helpers.tokenizers import STYLES, corpus, known, random_text


@functools.cache
def pair(style: str) -> tuple[tokenizers.Tokenizer, BpeTokenizer]:
    theirs = STYLES[style]()
    return theirs, BpeTokenizer(json.loads(theirs.to_str()))


def compare(style: str, text: str, rng: random.Random) -> None:
    theirs, ours = pair(style)
    ids = list(theirs.encode(text, add_special_tokens=False).ids)
    assert ours.encode(text) == ids, repr(text)
    anything = [rng.randrange(theirs.get_vocab_size()) for _ in range(12)]
    for part in (ids, ids[rng.randrange(len(ids) + 1) :], anything):
        assert ours.decode(part) == theirs.decode(part), part


@pytest.mark.parametrize("style", STYLES)
def test_ids_and_texts_are_those_of_tokenizers(style: str) -> None:
    rng = random.Random(1)
    for text in ["", *rng.sample(corpus(), 60), "".join(corpus()[:60]), *(random_text(rng) for _ in range(140))]:
        compare(style, text, rng)


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_ids_and_texts_of_thousands(style: str) -> None:
    rng = random.Random(2)
    whole = "".join(corpus())
    long = [whole[start : start + 5000] for start in range(0, len(whole) - 5000, len(whole) // 20)]
    for text in [*long, *rng.sample(corpus(), 500), *(random_text(rng) for _ in range(2000))]:
        compare(style, text, rng)

    @settings(max_examples=1000, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.text(st.characters(exclude_categories=("Cs", "Cn")).filter(known), max_size=60))
    def made_by_hypothesis(text: str) -> None:
        compare(style, text, rng)

    made_by_hypothesis()


def test_a_long_word_takes_the_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of merging give the same, on words with many equal pairs too."""
    _, ours = pair("llama2")
    rng = random.Random(4)
    words = ["".join(rng.choice("aeilnst▁") for _ in range(size)) for size in (1, 2, 3, 10, 40, 300)] + ["a" * 999, "▁" * 100]
    few = []
    monkeypatch.setattr("edgespec.runtime.text.bpe.merges.LONGEST_PLAIN", 10**6)
    few = [ours._bpe.encode(word) for word in words]
    monkeypatch.setattr("edgespec.runtime.text.bpe.merges.LONGEST_PLAIN", 0)
    assert [ours._bpe.encode(word) for word in words] == few


def test_words_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = STYLES["gpt2"](), BpeTokenizer(json.loads(pair("gpt2")[0].to_str()))
    monkeypatch.setattr("edgespec.runtime.text.bpe.tokenizer.MOST_CACHED", 50)
    for text in corpus()[:100]:
        assert ours.encode(text) == list(theirs.encode(text, add_special_tokens=False).ids)
        assert len(ours._words) <= 50


def changed(**changes: Any) -> dict[str, Any]:
    return {**json.loads(pair("gpt2")[0].to_str()), **changes}


def model(**changes: Any) -> dict[str, Any]:
    return {"model": {**changed()["model"], **changes}}


SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}
REFUSED = {
    "model Unigram": {"model": {"type": "Unigram", "vocab": []}},
    "model WordPiece": {"model": {"type": "WordPiece"}},
    "BPE with dropout": model(dropout=0.1),
    "BPE with end_of_word_suffix": model(end_of_word_suffix="</w>"),
    "normalizer BertNormalizer": {"normalizer": {"type": "BertNormalizer"}},
    "normalizer Precompiled": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}},
    "pre-tokenizer UnicodeScripts": {"pre_tokenizer": {"type": "UnicodeScripts"}},
    "pre-tokenizer ByteLevel before": {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, {"type": "Digits"}]}},
    "property Han": {"pre_tokenizer": {**SPLIT, "pattern": {"Regex": r"\p{Han}+"}}},
    "\\p near": {"pre_tokenizer": {**SPLIT, "pattern": {"Regex": r"\pN+"}}},
    "this kind of group": {"pre_tokenizer": {**SPLIT, "pattern": {"Regex": r"(?<name>a)"}}},
    "regular expression '[a'": {"pre_tokenizer": {**SPLIT, "pattern": {"Regex": "[a"}}},
    "decoder WordPiece": {"decoder": {"type": "WordPiece"}},
    "single_word": {"added_tokens": [{"id": 0, "content": "a", "single_word": True}]},
    "truncation": {"truncation": {"max_length": 3}},
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_only_tokenizers_can_do_is_refused(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = changed(**REFUSED[what])
    with pytest.raises(UnsupportedTokenizer, match=re.escape(what)):
        BpeTokenizer(config)
    (tmp_path / "tokenizer.json").write_text(json.dumps(config), encoding="utf-8")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(BundleError, match=r"only the package tokenizers can do this.*pip install tokenizers"):
        Tokenizer(tmp_path, TokenizerSpec("tokenizer.json", "0", 3, ()), 3)


@pytest.mark.parametrize("entry", [{"id": 10**12, "content": "a"}, {"id": -1, "content": "a"}, {"id": 0, "content": 5}, {"content": "a"}])
def test_added_tokens_that_are_none(entry: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(changed(added_tokens=[entry])), encoding="utf-8")
    with pytest.raises(ValueError, match=r"an added token|'id'"):
        BpeTokenizer.open(tmp_path / "tokenizer.json")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"model": {}}', '{"model": {"vocab": {}, "merges": [["a", "b"]]}}', "nonsense", "[" * 100000]
)
def test_files_that_are_no_tokenizer(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(BundleError, match=r"not a tokenizer\.json that can be read"):
        Tokenizer(tmp_path, TokenizerSpec("tokenizer.json", "0", 3, ()), 3)


def test_without_the_package_ours_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, _ = pair("qwen")
    theirs.save(str(tmp_path / "tokenizer.json"))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    size = theirs.get_vocab_size()
    tokenizer = Tokenizer(tmp_path, TokenizerSpec("tokenizer.json", "0", size, (), prefix_ids=(7,)), size)
    assert tokenizer.encode("<|im_start|>hey", prefix=True) == [7, *theirs.encode("<|im_start|>hey", add_special_tokens=False).ids]
    assert tokenizer.decode(tokenizer.encode("hé<|im_end|>", prefix=False)) == "hé"
    with pytest.raises(UsageError, match="cannot be encoded"):
        tokenizer.encode("\ud800", prefix=False)


def test_unknown_characters(tmp_path: Path) -> None:
    """Without bytes to fall back on: dropped, one unknown token each, or one for a run."""
    del tmp_path
    vocab = {"<unk>": 0, "a": 1, "b": 2, "ab": 3}
    for unknown in ({}, {"unk_token": "<unk>"}, {"unk_token": "<unk>", "fuse_unk": True}):
        theirs = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[("a", "b")], **unknown))  # type: ignore[arg-type]
        ours = BpeTokenizer(json.loads(theirs.to_str()))
        for text in ("ab", "xxaby", "axxxb", "xyz", ""):
            assert ours.encode(text) == list(theirs.encode(text).ids), (unknown, text)
            assert ours.decode([3, 0, 1]) == theirs.decode([3, 0, 1])


@pytest.mark.parametrize("behaviour", ["isolated", "removed", "contiguous", "merged_with_previous", "merged_with_next"])
@pytest.mark.parametrize("invert", [False, True])
def test_ways_to_split(behaviour: str, invert: bool) -> None:
    theirs = tokenizers.Tokenizer(models.BPE(vocab={char: index for index, char in enumerate("ab- ")}, merges=[]))
    theirs.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex("-|b+"), behavior=behaviour, invert=invert)  # type: ignore[assignment]
    _, ours = theirs, BpeTokenizer(json.loads(theirs.to_str()))
    for text in ("", "-", "a-b", "--a--bb-", "aab b-", "b-bb--", "a", "ab" * 3):
        expected = [word for word, _ in theirs.pre_tokenizer.pre_tokenize_str(text)] if text else []
        assert ours._cut is not None
        assert [word for word in ours._cut([text], True) if word] == expected, text


@pytest.mark.parametrize("kind", ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip"])
def test_normalizers(kind: str) -> None:
    theirs = tokenizers.Tokenizer(models.BPE())
    theirs.normalizer = getattr(normalizers, kind)()
    ours = BpeTokenizer(json.loads(theirs.to_str()))
    for text in (" Ångström ﬁ ½ ", "ΟΔΟΣ", "İstanbul", "\x1c \u3000x\xa0", "각", "e\u0301\u0323"):
        assert ours._normalize is not None
        assert ours._normalize(text) == theirs.normalizer.normalize_str(text)


def test_added_tokens_in_normalized_text() -> None:
    theirs = tokenizers.Tokenizer(models.BPE(vocab={char: index for index, char in enumerate("abcdefghijklmnopqrstuvwxyz ")}, merges=[]))
    theirs.normalizer = normalizers.Lowercase()  # type: ignore[assignment]
    theirs.add_tokens(
        [AddedToken("Hello", normalized=True), AddedToken("World", normalized=False), AddedToken("Hello World", normalized=True)]
    )
    ours = BpeTokenizer(json.loads(theirs.to_str()))
    for text in ("hello world", "HELLO World", "say HELLO", "World hello", "WORLD"):
        assert ours.encode(text) == list(theirs.encode(text).ids), text


PATTERNS = {
    r"\p{L}+|\p{^L}": r"[^\W\d_]+|.",
    r"[^\s\p{N}]+": None,
    r"\P{L}": None,
    r"[\d\-_a-f\]]+": r"[0-9\-_a-f\]]+",
    r"\x41|\u0042|\x{43}": "[ABC]",
    r"[^[ab]c]": "[^abc]",
    r"^a|b$": "(?m:^a|b$)",
}


@pytest.mark.parametrize("source", PATTERNS)
def test_patterns(source: str) -> None:
    pattern, text = compile_pattern(source), "ab c-1_2]\nABC\tdéf\x1cx\nab"
    expected = PATTERNS[source]
    if expected is not None:
        assert pattern.findall(text) == re.findall(expected, text, re.DOTALL)
    theirs = pre_tokenizers.Split(tokenizers.Regex(source), behavior="removed", invert=True)
    assert [match for match in pattern.findall(text) if match] == [word for word, _ in theirs.pre_tokenize_str(text)]


def test_categories_cover_all_characters_once() -> None:
    every = sorted(item for name in "LMNPSZC" for item in ranges_of(name))
    assert (every[0][0], every[-1][1]) == (0, LAST)
    assert all(after[0] == before[1] + 1 for before, after in itertools.pairwise(every))
    assert complement(complement(ranges_of("L"))) == ranges_of("L")
    for code in random.Random(5).sample(range(LAST + 1), 2000):
        name = unicodedata.category(chr(code))
        assert any(first <= code <= last for first, last in ranges_of(name)), hex(code)
