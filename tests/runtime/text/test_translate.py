"""Between two tokenizers, on texts of any kind."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

tokenizers = pytest.importorskip("tokenizers")

from edgespec.runtime.text.tokenizer import _Package  # noqa: E402
from edgespec.runtime.text.translate import TAIL, SharedIds, Translator  # noqa: E402
from tests.helpers.tokenizers import byte_level  # noqa: E402

TEXTS = [
    "the cat sat on the mat and the dog sat on the log, and the cat looked at the dog " * 3,
    "def add(a, b):\n    return a + b\n\n\nprint(add(1, 2))\n" * 3,
    "über die Brücke führt der Weg 🙂 naïve façade, 日本語のテキスト " * 3,
    "<user>hello<eos><user>and    many   spaces\t\ttabs<eos>",
]


@pytest.fixture(scope="module")
def pair() -> tuple[tokenizers.Tokenizer, tokenizers.Tokenizer]:
    return byte_level(400, TEXTS), byte_level(300, TEXTS[:1])


@pytest.fixture(scope="module")
def shared(pair: tuple[tokenizers.Tokenizer, tokenizers.Tokenizer]) -> SharedIds:
    target, draft = pair
    ids = [target.token_to_id(draft.id_to_token(index)) for index in range(draft.get_vocab_size())]
    return SharedIds(np.array([-1 if index is None else index for index in ids]), target.get_vocab_size())


@pytest.fixture
def translator(pair: tuple[tokenizers.Tokenizer, tokenizers.Tokenizer], shared: SharedIds) -> Translator:
    return Translator(_Package(pair[0]), _Package(pair[1]), shared)


Encode = Callable[[str], list[int]]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("step", [1, 3, 7])
def test_a_growing_text_is_followed(
    pair: tuple[tokenizers.Tokenizer, tokenizers.Tokenizer], translator: Translator, text: str, step: int
) -> None:
    """Ids are those of the whole text encoded at once, though only its end is, and complete characters only are read."""
    target, draft = pair
    context = target.encode(text, add_special_tokens=False).ids
    followed = 0
    for end in range(1, len(context) + 1, step):
        so_far = target.decode(context[:end], skip_special_tokens=False)
        found = translator.follow(context[:end])
        assert (found is None) == so_far.endswith("\ufffd")
        if found is not None:
            assert found == draft.encode(so_far, add_special_tokens=False).ids
            followed += 1
    assert followed > 1
    if len(context) > 4 * TAIL:
        assert translator._anchor > 0, "the beginning is not encoded again"


def test_another_text_begins_anew(pair: tuple[tokenizers.Tokenizer, tokenizers.Tokenizer], translator: Translator) -> None:
    target, draft = pair
    for text in (TEXTS[0], TEXTS[1], TEXTS[0][:40]):
        ids = target.encode(text, add_special_tokens=False).ids
        for end in range(10, len(ids), 30):
            translator.follow(ids[:end])
        assert translator.follow(ids) == draft.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("text", TEXTS)
def test_what_the_draft_writes_comes_back_as_the_same_text(
    pair: tuple[tokenizers.Tokenizer, tokenizers.Tokenizer], translator: Translator, text: str
) -> None:
    target, draft = pair
    context = target.encode(text, add_special_tokens=False).ids
    exact = 0
    for end in range(1, len(context) - 8, 5):
        ids = translator.follow(context[:end])
        if ids is None:
            continue
        rest = target.decode(context[end : end + 6], skip_special_tokens=False)
        if rest.startswith("\ufffd") or rest.endswith("\ufffd"):
            continue
        back = translator.back(ids, draft.encode(rest, add_special_tokens=False).ids)
        assert target.decode(back, skip_special_tokens=False) == rest
        exact += back == context[end : end + 6]
    assert exact > 0


def test_a_draft_that_shares_most_ids_reads_these(shared: SharedIds) -> None:
    ids = SharedIds(np.array([0, 1, 2, -1, 5]), 6)
    translator = Translator(None, None, ids)  # type: ignore[arg-type]
    assert translator.follow([1, 5, 3, 0]) == [1, 4, 0]
    row = ids.widen(np.array([1, 2, 3, 9, 4], np.float32))
    assert row.argmax() == 5
    assert row[3] == row[4] < -1e8
    assert len(shared.of_target) > 250


def test_the_prefix_is_the_drafts_own(pair: tuple[tokenizers.Tokenizer, tokenizers.Tokenizer], shared: SharedIds) -> None:
    target, draft = pair
    begin = target.token_to_id("<user>")
    translator = Translator(_Package(target), _Package(draft), shared, prefix=[7], skipped=[begin])
    ids = target.encode("the cat", add_special_tokens=False).ids
    assert translator.follow([begin, *ids]) == [7, *draft.encode("the cat", add_special_tokens=False).ids]
