"""Drafts with another vocabulary: padded, with other special tokens, and with a tokenizer of their own, trained here."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import edgespec
from edgespec.bundle import describe_file
from edgespec.errors import BundleError, CheckpointError, UsageError
from edgespec.export import ExportConfig, prepare, write_bundle
from edgespec.export.checkpoint import open_checkpoint
from edgespec.export.pipeline import Prepared
from edgespec.export.tokenizer import Tokenizer
from edgespec.export.vocabulary import other_vocabulary
from edgespec.manifest import MANIFEST_NAME, read_manifest
from edgespec.runtime import Engine, drafters
from edgespec.runtime.drafters.draft_model import DraftModel
from tests.export.conftest import export
from tests.helpers.checkpoints import make_model
from tests.helpers.tokenizers import byte_level

TEXT = [
    "the cat sat on the mat and the dog sat on the log",
    "a ferry leaves at noon and another one leaves at night",
    "bread rises when it is baked because of the gas in it",
    "über die Brücke führt der Weg, naïve façade",
]
PROMPT = "the cat sat on the log and a ferry leaves"


def metaspace(size: int, texts: Sequence[str]) -> RawTokenizer:
    """Llama-2's kind: a mark for a space, and what is not in the alphabet as bytes."""
    spare = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = RawTokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()  # type: ignore[assignment]
    tokenizer.decoder = decoders.Sequence(  # type: ignore[assignment]
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(vocab_size=size + 257, special_tokens=["<unk>", *spare], show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    config = json.loads(tokenizer.to_str())
    config["added_tokens"] = []
    tokenizer = RawTokenizer.from_str(json.dumps(config))
    tokenizer.add_special_tokens(["<eos>"])
    return tokenizer


def checkpoint(folder: Path, raw: RawTokenizer, *, padding: int = 0, seed: int = 0, positions: int = 512) -> Path:
    size = raw.get_vocab_size()
    eos = raw.token_to_id("<eos>")
    settings = {"num_hidden_layers": 1, "vocab_size": size + padding, "pad_token_id": eos, "bos_token_id": eos, "eos_token_id": eos}
    make_model("llama", seed, max_position_embeddings=positions, **settings).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<eos>").save_pretrained(folder)
    return folder


KINDS = [*(pytest.param(kind, marks=pytest.mark.slow) for kind in ("padded", "other tail")), "byte level", "metaspace"]


class Bundles:
    """A target with a draft of each kind, exported when it is asked for."""

    def __init__(self, prepared: Prepared, drafts: dict[str, Path], root: Path) -> None:
        self.prepared, self.drafts, self.root = prepared, drafts, root

    def __getitem__(self, kind: str) -> Path:
        place = self.root / f"bundle-{kind.replace(' ', '-')}"
        if not place.exists():
            write_bundle(self.prepared, place, draft=str(self.drafts[kind]))
        return place


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    root = tmp_path_factory.mktemp("vocabularies")
    raw = byte_level(320, TEXT)
    target = checkpoint(root / "target", raw)
    tail = byte_level(320, TEXT, ["<eos>", "<tool>", "<more>"])
    copy_ = checkpoint(root / "copy", tail, padding=-1)  # as many rows as the target
    drafts = {
        "copy": copy_,
        "padded": checkpoint(root / "padded", raw, padding=24),
        "other tail": checkpoint(root / "tail", tail, padding=5),
        "byte level": checkpoint(root / "bytes", byte_level(280, TEXT[2:]), seed=1),
        "short": checkpoint(root / "short", raw, positions=48),
        "metaspace": checkpoint(root / "marks", metaspace(150, TEXT), seed=2),
    }
    prepared = prepare(ExportConfig(target=str(target), output=root / "unused", weights="fp32", max_width=12, quiet=True))
    return Bundles(prepared, drafts, root)


def drafter_of(engine: Engine) -> str:
    return "universal" if "universal" in engine.drafters else "draft"


@pytest.mark.parametrize("kind", KINDS)
def test_the_manifest_says_which_ids_are_shared(bundles: Bundles, kind: str) -> None:
    manifest = read_manifest(bundles[kind])
    draft = manifest.models["draft"]
    assert [drafter.kind for drafter in manifest.drafters] == ["ngram", "draft" if kind == "padded" else "universal"]
    assert (draft.token_ids is None) == (kind == "padded")
    assert (draft.tokenizer is not None) == (kind in ("byte level", "metaspace"))
    if draft.token_ids is None:
        return
    ids = np.fromfile(bundles[kind] / draft.token_ids, "<i4")
    assert len(ids) == draft.vocab_size
    target = RawTokenizer.from_file(str(bundles[kind] / "tokenizer.json"))
    own = RawTokenizer.from_file(str(bundles[kind] / draft.tokenizer.file)) if draft.tokenizer else None
    if own is None:
        assert ids[320] == 320, "<eos> is in both"
        assert ids[321:].tolist() == [-1] * (len(ids) - 321)
        return
    for index in np.flatnonzero(ids >= 0).tolist():
        there, here = own.decode([index], skip_special_tokens=False), target.decode([int(ids[index])], skip_special_tokens=False)
        assert there.strip() == here.strip()
    assert (ids >= 0).sum() > 100


@pytest.mark.parametrize("kind", KINDS)
def test_text_is_that_of_plain_decoding(bundles: Bundles, kind: str) -> None:
    with edgespec.load(bundles[kind], threads=1) as engine:
        drafter = drafter_of(engine)
        for prompt in (PROMPT, "über", "x"):
            plain = engine.generate(prompt, drafter="none", max_new_tokens=60, ignore_eos=True)
            for length in (1, 3, 7):
                found = engine.generate(prompt, drafter=drafter, draft_length=length, max_new_tokens=60, ignore_eos=True)
                assert found.token_ids == plain.token_ids
                assert found.stats.drafted > 0
        options = {"do_sample": True, "seed": 3, "repetition_penalty": 1.2, "max_new_tokens": 40}
        drawn = [engine.generate(PROMPT, drafter=name, **options).token_ids for name in ("none", drafter)]
        assert drawn[0] == drawn[1], "a seed draws the same text"
        assert engine.generate(PROMPT, drafter=drafter, draft_length=3, do_sample=True, max_new_tokens=40, ignore_eos=True).stats.drafted


def test_a_copy_of_the_target_with_other_special_tokens_is_always_right(bundles: Bundles) -> None:
    """The two models have the same weights but for the padding of their heads."""
    with edgespec.load(bundles["copy"], threads=1) as engine:
        stats = engine.generate(PROMPT, drafter="universal", draft_length=3, max_new_tokens=41, ignore_eos=True).stats
        assert stats.acceptance_rate == 1.0


def test_the_draft_reads_the_text_that_there_is(bundles: Bundles, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cache holds the ids of the whole text at every proposal, also where the end is cut otherwise than a round before."""
    catch_up, changed, before = DraftModel.catch_up, 0, list[int]()

    def checked(draft: DraftModel, ids: Sequence[int], count: int) -> object:
        nonlocal changed, before
        logits = catch_up(draft, ids, count)
        assert draft._model.tokens == list(ids)
        changed += list(ids[: len(before)]) != before
        before = list(ids)
        return logits

    monkeypatch.setattr(DraftModel, "catch_up", checked)
    with edgespec.load(bundles["byte level"], threads=1) as engine:
        # Letter by letter, where the draft's tokenizer puts letters together.
        letters = [engine.tokenizer.encode(letter, prefix=False)[0] for letter in "bread rises when it is baked because"]
        engine.generate("x", drafter="universal", draft_length=2, max_new_tokens=60, ignore_eos=True, forced_tokens=letters)
    assert changed > 4


@pytest.mark.parametrize("drafter", ["draft", "tree"])
def test_a_draft_for_shorter_texts_sees_their_end(bundles: Bundles, drafter: str) -> None:
    """It is the target itself, made for 48 tokens: always right while it sees all, and it still drafts when it does not."""
    models = read_manifest(bundles["short"]).models
    assert (models["target"].capacity, models["draft"].capacity) == (512, 48)
    with edgespec.load(bundles["short"], threads=1) as engine:
        options = {"max_new_tokens": 200, "ignore_eos": True}
        plain = engine.generate(PROMPT, drafter="none", **options)
        found = engine.generate(PROMPT, drafter=drafter, draft_length=3, **options)
        assert found.token_ids == plain.token_ids
        assert found.stats.drafted > 100
        assert found.stats.accepted > 15


@pytest.mark.parametrize("length", [3, 9])
def test_a_draft_with_a_small_window_drafts_what_it_has_room_for(bundles: Bundles, length: int) -> None:
    with edgespec.load(bundles["metaspace"], threads=1, draft_window=16) as engine:
        options = {"max_new_tokens": 60, "ignore_eos": True}
        plain = engine.generate(PROMPT, drafter="none", **options)
        found = engine.generate(PROMPT, drafter="universal", draft_length=length, **options)
        assert found.token_ids == plain.token_ids
        assert found.stats.drafted > 10


def test_it_is_part_of_the_default(bundles: Bundles) -> None:
    assert drafters.chosen("auto", read_manifest(bundles["byte level"])) == ("ngram", "universal")


def test_ids_that_lead_nowhere_are_refused(bundles: Bundles, tmp_path: Path) -> None:
    for content, message in ((np.zeros(3, "<i4"), "bytes where"), (None, "two tokens to one")):
        folder = tmp_path / message[:3]
        shutil.copytree(bundles["byte level"], folder)
        manifest = read_manifest(folder)
        draft = manifest.models["draft"]
        path = folder / str(draft.token_ids)
        path.write_bytes((np.zeros(draft.vocab_size, "<i4") if content is None else content).tobytes())
        files = tuple(describe_file(path) if file.name == path.name else file for file in manifest.files)
        (folder / MANIFEST_NAME).write_text(dataclasses.replace(manifest, files=files).to_json())
        with edgespec.load(folder, threads=1) as engine, pytest.raises(BundleError, match=message):
            engine.generate("a", drafter="universal", draft_length=2)


def test_vocabularies_with_next_to_nothing_in_common_are_refused(tmp_path: Path) -> None:
    raw = RawTokenizer(models.WordLevel({"<eos>": 0, "the": 1, **{f"word{index}": index for index in range(2, 80)}}, unk_token="<eos>"))
    tokenizers = []
    for name, tokenizer in (("one", byte_level(300, TEXT)), ("two", raw)):
        tokenizers.append(Tokenizer(open_checkpoint(str(checkpoint(tmp_path / name, tokenizer)))))
    with pytest.raises(CheckpointError, match="of its 80 tokens are among the target's"):
        other_vocabulary(tokenizers[1], tokenizers[0], 80, 400, "--draft two")


def test_the_target_in_fewer_bits_drafts_for_itself(llama: Path, tmp_path: Path) -> None:
    report = export(llama, tmp_path / "bundle", draft="self", weights="int8", draft_weights="int4", method="rtn")
    draft = report.manifest.models["draft"]
    assert (draft.quantisation.bits, len(draft.layers)) == (4, len(report.manifest.target.layers))
    assert draft.source.derived == "the target with int4 weights"
    with edgespec.load(report.output, threads=1) as engine:
        plain = engine.generate("hello", drafter="none", max_new_tokens=40, ignore_eos=True)
        found = engine.generate("hello", drafter="draft", draft_length=4, max_new_tokens=40, ignore_eos=True)
        assert found.token_ids == plain.token_ids
        assert found.stats.acceptance_rate is not None
        assert found.stats.acceptance_rate > 0.3
    for weights in ({}, {"draft_weights": "int8"}):
        with pytest.raises(UsageError, match="--draft self: give other --draft-weights than int8"):
            export(llama, tmp_path / "no", draft="self", weights="int8", **weights)
