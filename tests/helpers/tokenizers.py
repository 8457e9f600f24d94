"""Tokenizers in the styles of well-known models, trained on the spot: the same parts, a small vocabulary."""

from __future__ import annotations

import functools
import json
import random
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
FOREIGN = "Ein Stück Käse, über Österreich. Être: là. 日本語のテキストです。 Привет! مرحبا بالعالم 안녕 १२३ 😀👩‍👩‍👧 ½ ①"


@functools.cache
def corpus() -> list[str]:
    """Lines of the repository's own documents, and a few in other scripts."""
    root = Path(__file__).parents[2]
    files = sorted([*(root / "docs").glob("*.md"), *(root / "runtime").rglob("*.py")])
    return [*(line for file in files for line in file.read_text(encoding="utf-8").splitlines(keepends=True)), *[FOREIGN] * 20]


def _trained(tokenizer: tokenizers.Tokenizer, size: int, special: list[AddedToken], **options: Any) -> tokenizers.Tokenizer:
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False, **options)
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def _byte_level(pre_tokenizer: Any, special: list[AddedToken], **model: Any) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    return _trained(tokenizer, 2000, special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def byte_level(size: int, texts: Sequence[str], special: Sequence[str] = ("<eos>", "<user>")) -> tokenizers.Tokenizer:
    """GPT-2's kind, trained on ``texts``: text in its byte alphabet."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    cut = pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)
    return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _special(*texts: str) -> list[AddedToken]:
    return [AddedToken(text, special=True, normalized=False) for text in texts]


def gpt2() -> tokenizers.Tokenizer:
    return _byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), _special("<|endoftext|>"))


def qwen() -> tokenizers.Tokenizer:
    tokenizer = _byte_level(_split(QWEN), _special("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    tokenizer.normalizer = normalizers.NFC()  # type: ignore[assignment]
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("</tool_call>", normalized=False)])
    return tokenizer


def llama3() -> tokenizers.Tokenizer:
    names = [f"<|reserved_special_token_{index}|>" for index in range(40)]
    return _byte_level(_split(LLAMA3), _special("<|begin_of_text|>", "<|eot_id|>", *names), ignore_merges=True)


def gpt4o() -> tokenizers.Tokenizer:
    return _byte_level(_split(GPT4O), _special("<|endoftext|>"))


def smollm2() -> tokenizers.Tokenizer:
    cut = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return _byte_level(cut, _special("<|endoftext|>", "<|im_start|>", "<|im_end|>"))


def phi() -> tokenizers.Tokenizer:
    """A prefix space, digits in runs, tokens that take the spaces around them, and tokens in normalized text."""
    cut = pre_tokenizers.Sequence([pre_tokenizers.Digits(), pre_tokenizers.ByteLevel()])
    tokenizer = _byte_level(cut, _special("<|endoftext|>"))
    tokenizer.add_tokens([AddedToken("<left>", lstrip=True, normalized=False), AddedToken("<right>", rstrip=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("Normal", normalized=True), AddedToken("Norm", normalized=True), AddedToken("  ", normalized=False)])
    tokenizer.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.Lowercase()])  # type: ignore[assignment]
    return tokenizer


def _byte_tokens() -> list[str]:
    return [f"<0x{byte:02X}>" for byte in range(256)]


def _metaspace(tokenizer: tokenizers.Tokenizer, special: list[str]) -> tokenizers.Tokenizer:
    """A vocabulary in SentencePiece's order, with bytes behind the special tokens, from what was trained without them."""
    trained = json.loads(_trained(tokenizer, 1500, []).to_str())
    first = [*special, *_byte_tokens()]
    words = [word for word, _ in sorted(trained["model"]["vocab"].items(), key=lambda item: item[1])]
    trained["model"]["vocab"] = {word: token for token, word in enumerate([*first, *words])}
    trained["model"].update(byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    trained["added_tokens"] = [
        {"id": token, "content": text, "special": True, "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}
        for token, text in enumerate(special)
    ]
    return tokenizers.Tokenizer.from_str(json.dumps(trained))


def llama2() -> tokenizers.Tokenizer:
    """Spaces by the normalizer, as conversions from SentencePiece have them: a whole text is one word."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token=None))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])  # type: ignore[assignment]
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", behavior="merged_with_next")  # type: ignore[assignment] # for training only
    made = _metaspace(tokenizer, ["<unk>", "<s>", "</s>"])
    made.pre_tokenizer = None  # type: ignore[assignment]
    strip = decoders.Strip(content=" ", left=1, right=0)
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip])  # type: ignore[assignment]
    return made


def mistral() -> tokenizers.Tokenizer:
    """Spaces by the pre-tokenizer, only at the text's beginning."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)  # type: ignore[assignment]
    made = _metaspace(tokenizer, ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"])
    strip = decoders.Strip(content=" ", left=1, right=0)
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip])  # type: ignore[assignment]
    return made


def gemma() -> tokenizers.Tokenizer:
    """No prefix; a split at spaces that can no longer be found after the normalizer."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token=None))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")  # type: ignore[assignment]
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", behavior="merged_with_next")  # type: ignore[assignment] # for training only
    made = _metaspace(tokenizer, ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "\n\n", "▁▁"])
    made.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")  # type: ignore[assignment]
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])  # type: ignore[assignment]
    return made


STYLES: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    style.__name__: style for style in (gpt2, qwen, llama3, gpt4o, smollm2, phi, llama2, mistral, gemma)
}

SPACES = " \t\n\r\x0b\x0c\x1c\x1f\x85\xa0\u1680\u2007\u2028\u2029\u3000"
SPELLED = (
    "'S",
    "'ſ",
    "'LL",
    "<|im_end|>",
    " <left> \n",
    " <right>  x",
    "Normal",
    "Normally",
    "  ",
    "</s>",
    "[INST]",
    "\n\n",
    "<0x41>",
    "▁",
)


_UNASSIGNED = pre_tokenizers.Split(Regex(r"\p{Cn}"), behavior="removed")


@functools.cache
def known(char: str) -> bool:
    """Whether Python and tokenizers, whose versions of Unicode differ, both know it: assigned, and no mark that is so young that the
    tables of tokenizers' normalizers miss it."""
    if unicodedata.category(char) == "Cn" or not _UNASSIGNED.pre_tokenize_str(char):
        return False
    return not unicodedata.combining(char) or unicodedata.ucd_3_2_0.category(char) != "Cn"


def random_text(rng: random.Random) -> str:
    """ASCII, spaces of all kinds, characters of many scripts, and added tokens spelled out."""
    parts = []
    for _ in range(rng.randrange(1, 40)):
        kind = rng.random()
        code = rng.randrange(32, 127) if kind < 0.3 else rng.randrange(0x80, 0x3000) if kind < 0.8 else rng.randrange(0x20000)
        char = rng.choice(SPACES) if 0.3 <= kind < 0.5 else "\ufffd" if 0xD800 <= code < 0xE000 else chr(code)
        parts.append(char if known(char) else "")
        parts.append(rng.choice(SPELLED) if rng.random() < 0.08 else "")
    return "".join(parts)
