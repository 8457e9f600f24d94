"""The tokenizer of a bundle: ``tokenizer.json``, the chat template, and what the runtime has to know of both."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path

from transformers import AutoTokenizer, GenerationConfig

from edgespec.errors import CheckpointError
from edgespec.export.checkpoint import Checkpoint
from edgespec.manifest import TokenizerSpec
from edgespec.runtime.text.bpe.decoders import letter_bytes

TOKENIZER_FILE = "tokenizer.json"
TEMPLATE_FILE = "chat_template.jinja"
BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")


class Tokenizer:
    """A checkpoint's fast tokenizer."""

    def __init__(self, checkpoint: Checkpoint, *, trust_remote_code: bool = False) -> None:
        self._checkpoint = checkpoint
        origin = checkpoint.origin
        try:
            self._tokenizer = origin.load(AutoTokenizer.from_pretrained, trust_remote_code=trust_remote_code)
        except Exception as error:  # transformers raises many kinds here
            reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise CheckpointError(f"{origin.name}: its tokenizer cannot be loaded: {reason[:200]}") from error
        if not getattr(self._tokenizer, "is_fast", False):
            raise CheckpointError(f"{origin.name}: its tokenizer has no tokenizer.json form; convert it with transformers first")

    def __len__(self) -> int:
        return len(self._tokenizer)

    def encode(self, text: str) -> list[int]:
        """Token ids, with what the tokenizer itself puts before a text."""
        return list(self._tokenizer(text)["input_ids"])

    def check_ids(self, vocab_size: int, texts: Iterable[str]) -> None:
        """Refuse a tokenizer that gives ordinary text ids which the model does not have.

        A few tokens beyond the model's vocabulary are common and harmless: Gemma-3's text models share the tokenizer of
        the multimodal ones, whose placeholder for an image is one more.
        """
        for text in texts:
            largest = max(self.encode(text), default=0)
            if largest >= vocab_size:
                name = self._checkpoint.origin.name
                raise CheckpointError(f"{name}: the tokenizer has {len(self)} tokens and the model only {vocab_size}")

    @property
    def fingerprint(self) -> str:
        """sha256 over all tokens with their ids: equal for models that may exchange token ids."""
        vocabulary = sorted((index, token) for token, index in self._tokenizer.get_vocab().items())
        return hashlib.sha256(json.dumps(vocabulary, ensure_ascii=False).encode()).hexdigest()

    @property
    def merges(self) -> str:
        """How text is cut: everything in tokenizer.json but the tokens that are added and the vocabulary."""
        steps = json.loads(self._tokenizer.backend_tokenizer.to_str())
        model = {name: value for name, value in steps["model"].items() if name != "vocab"}
        return json.dumps([model, steps.get("normalizer"), steps.get("pre_tokenizer")], sort_keys=True)

    def spellings(self) -> dict[str | bytes, int]:
        """Ids by what their tokens stand for: bytes of text, and the name of a token that is added to the vocabulary.

        A space is written in two ways, and bytes in two more: as in GPT-2's alphabet, or as ``▁`` and ``<0x0A>``.
        """
        backend = self._tokenizer.backend_tokenizer
        added = {token.content for token in backend.get_added_tokens_decoder().values()}
        steps = json.loads(backend.to_str())
        byte_level = '"ByteLevel"' in json.dumps([steps.get("decoder"), steps.get("pre_tokenizer")])
        found: dict[str | bytes, int] = {}
        for token, index in sorted(self._tokenizer.get_vocab().items(), key=lambda item: item[1]):
            found.setdefault(token if token in added else _spelling(token, byte_level), index)
        return found

    def save(self, folder: Path, name: str = TOKENIZER_FILE) -> TokenizerSpec:
        """Write the tokenizer's files and describe them; the chat template only beside the usual name."""
        tokenizer = self._tokenizer
        backend = tokenizer.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        backend.save(str(folder / name))
        template = self._template() if name == TOKENIZER_FILE else None
        if template is not None:
            (folder / TEMPLATE_FILE).write_text(template, encoding="utf-8")
        return TokenizerSpec(
            file=name,
            fingerprint=self.fingerprint,
            vocab_size=len(tokenizer),
            eos_ids=self._eos_ids(),
            bos_id=tokenizer.bos_token_id,
            prefix_ids=self._prefix(),
            chat_template=TEMPLATE_FILE if template is not None else None,
            bos_token=tokenizer.bos_token,
            eos_token=tokenizer.eos_token,
        )

    def _template(self) -> str | None:
        template = self._tokenizer.chat_template
        if isinstance(template, dict):
            template = template.get("default")
        return template if isinstance(template, str) else None

    def _prefix(self) -> tuple[int, ...]:
        """What stands before every text and is not the text: a BOS token, or nothing."""
        with_special = self._tokenizer("a")["input_ids"]
        without = self._tokenizer("a", add_special_tokens=False)["input_ids"]
        return tuple(with_special[: with_special.index(without[0])]) if without and without[0] in with_special else ()

    def _eos_ids(self) -> tuple[int, ...]:
        """Ids that end a text: the generation configuration's, else the model's, and the tokenizer's own."""
        ids: set[int] = set()
        folder = self._checkpoint.origin.folder
        # A GGUF's folder may hold the files of other models.
        if self._checkpoint.origin.gguf_file is None and (folder / "generation_config.json").is_file():
            try:
                ids |= _as_set(GenerationConfig.from_pretrained(str(folder), local_files_only=True).eos_token_id)
            except (OSError, ValueError, TypeError) as error:
                raise CheckpointError(f"{folder / 'generation_config.json'}: cannot be read: {str(error).splitlines()[0]}") from error
        ids |= self._checkpoint.end_ids()
        ids |= ids or _as_set(self._checkpoint.config.get_text_config().eos_token_id)
        ids |= _as_set(self._tokenizer.eos_token_id)
        vocab_size = self._checkpoint.config.get_text_config().vocab_size
        return tuple(sorted(token for token in ids if 0 <= token < vocab_size))


def _as_set(ids: int | list[int] | None) -> set[int]:
    return set() if ids is None else {ids} if isinstance(ids, int) else set(ids)


def _spelling(token: str, byte_level: bool) -> bytes:
    letters = letter_bytes()
    if byte_level and all(char in letters for char in token):
        return bytes(letters[char] for char in token)
    if BYTE_TOKEN.fullmatch(token):
        return bytes([int(token[3:5], 16)])
    return token.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode("utf-8", "surrogatepass")
