"""Tokenizer, detokeniser, stop texts, chat templates."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models

from edgespec.bundle import open_bundle
from edgespec.errors import BundleError, UsageError
from edgespec.manifest import TokenizerSpec
from edgespec.runtime.text.chat_template import ChatTemplate
from edgespec.runtime.text.detokenizer import LONGEST_WAIT, Detokenizer
from edgespec.runtime.text.stop import StopTexts
from edgespec.runtime.text.tokenizer import Tokenizer
from tests.helpers.bundles import EOS, make_lookup_bundle


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    bundle = make_lookup_bundle(tmp_path / "b")
    return Tokenizer(bundle, open_bundle(bundle).tokenizer, 259)


@pytest.mark.parametrize("text", ["plain", "naïve café", "日本語のテキスト", "👩‍👩‍👧 family 🇩🇪", "a\ufffdb", "tab\tnew\n\nline", "مرحبا"])
def test_no_half_characters_and_nothing_lost(tokenizer: Tokenizer, text: str) -> None:
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push(token) for token in tokenizer.encode(text, prefix=False)]
    assert "".join(pieces) + detokenizer.flush() == text
    for piece in pieces:
        assert "\ufffd" not in piece.replace("a\ufffdb", "") or "\ufffd" in text


def test_random_bytes_come_out_as_the_decoder_has_them(tokenizer: Tokenizer) -> None:
    rng = random.Random(0)
    for _ in range(50):
        text = "".join(
            chr(rng.choice([rng.randrange(32, 127), rng.randrange(0x3B1, 0x3C9), rng.randrange(0x1F600, 0x1F640)])) for _ in range(20)
        )
        ids = tokenizer.encode(text, prefix=False)[: rng.randrange(1, 60)]
        detokenizer = Detokenizer(tokenizer)
        assert "".join(map(detokenizer.push, ids)) + detokenizer.flush() == tokenizer.decode(ids)


def test_an_unfinished_character_is_held_and_flushed(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push(token) for token in "é😀".encode()[:5]] == ["", "é", "", "", ""]
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


def test_what_never_becomes_a_character_is_not_held_for_ever(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer)
    assert any(detokenizer.push(0xFF) for _ in range(LONGEST_WAIT))


def test_special_tokens_have_no_text(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push(token) for token in (97, EOS, EOS, 98)] == ["a", "", "", "b"]


def test_spaces_of_a_sentencepiece_vocabulary(tmp_path: Path) -> None:
    """Its decoder drops a text's first space, so a token's text depends on whether it comes first."""
    raw = tokenizers.Tokenizer(models.BPE(vocab={"▁a": 0, "▁b": 1, "c": 2}, merges=[]))
    raw.decoder = decoders.Metaspace()  # type: ignore[assignment]
    raw.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path, TokenizerSpec("tokenizer.json", "0", 3, ()), 3)
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push(token) for token in (0, 1, 2, 1)] == ["a", " b", "c", " b"]


def test_ids_outside_the_model_are_refused(tmp_path: Path) -> None:
    bundle = make_lookup_bundle(tmp_path / "b")
    small = Tokenizer(bundle, open_bundle(bundle).tokenizer, 100)
    with pytest.raises(BundleError, match="gives id 122, and the model has 100"):
        small.encode("z", prefix=False)
    with pytest.raises(UsageError, match="from 0 to 99"):
        small.check([100])


def test_a_prompt_that_is_not_unicode(tokenizer: Tokenizer) -> None:
    with pytest.raises(UsageError, match="cannot be encoded"):
        tokenizer.encode("\ud800", prefix=False)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_stop_texts_in_pieces_of_any_size(size: int) -> None:
    text = "one END two ENDING three STOP four"
    for stops, shown, found in (
        (["STOP"], "one END two ENDING three ", True),
        (["ENDING", "STOP"], "one END two ", True),
        (["END", "ENDING"], "one ", True),
        (["four!"], text, False),
        ([], text, False),
    ):
        stopper, out, stopped = StopTexts(stops), "", False
        for start in range(0, len(text), size):
            more, stopped = stopper.push(text[start : start + size])
            out += more
            if stopped:
                break
        assert (out + ("" if stopped else stopper.flush()), stopped) == (shown, found)


def template(folder: Path, text: str) -> ChatTemplate:
    (folder / "t.jinja").write_text(text, encoding="utf-8")
    return ChatTemplate(folder, TokenizerSpec("x", "0", 3, (), chat_template="t.jinja", bos_token="<s>", eos_token="</s>"))


def test_a_template_renders_like_transformers(tmp_path: Path) -> None:
    source = (
        "{{ bos_token }}\n{% for message in messages %}\n    {% if message['role'] == 'system' %}{% continue %}{% endif %}\n"
        "<{{ message.role }}>{{ message.content | trim }}{{ eos_token }}\n{% endfor %}\n"
        "{% if add_generation_prompt %}<assistant>{% endif %}{{ {'a': '<é>'} | tojson }}"
    )
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": " hi "}]
    assert template(tmp_path, source).render(messages) == '<s>\n<user>hi</s>\n<assistant>{"a": "<é>"}'


@pytest.mark.parametrize(
    "source",
    ["{% for", "{{ " + "(" * 5000 + ")" * 5000 + " }}", "{% for x in y %}" * 30 + "{% endfor %}" * 30],
    ids=["cut", "deep", "nested"],
)
def test_what_is_no_template(tmp_path: Path, source: str) -> None:
    with pytest.raises(BundleError, match="not a chat template that can be read"):
        template(tmp_path, source)


def test_what_a_template_refuses(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="refuses these messages: roles must alternate"):
        template(tmp_path, "{{ raise_exception('roles must alternate') }}").render([{"role": "user", "content": "x"}])
    with pytest.raises(UsageError, match="no messages"):
        template(tmp_path, "x").render([])
    assert len(template(tmp_path, "{{ strftime_now('%Y') }}").render([{"role": "user", "content": "x"}])) == 4


@pytest.mark.parametrize(
    "source", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{% include 'edgespec.json' %}", "{{ 1 / 0 }}"]
)
def test_a_template_cannot_leave_its_sandbox(tmp_path: Path, source: str) -> None:
    with pytest.raises(UsageError, match="fails on these messages"):
        template(tmp_path, source).render([{"role": "user", "content": "x"}])
