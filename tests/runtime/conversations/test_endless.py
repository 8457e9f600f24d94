"""Texts longer than the cache: what is seen of them, and that drafts change nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgespec.errors import CapacityError, UsageError
from edgespec.runtime import Engine, load
from edgespec.runtime.endless import SINKS, Rolling
from edgespec.runtime.exactness import Exactness
from edgespec.runtime.models.model import Model
from tests.helpers.bundles import make_attention_bundle

CONTEXT = 64
PROMPT = [7, 8, 9, 10] * 4
LONG = np.random.default_rng(3).integers(0, 256, 150).tolist()
DRAFTERS = ("ngram", "draft", "tree", "lookahead")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder with positions and a window, and a draft that often agrees with it."""
    return make_attention_bundle(tmp_path_factory.mktemp("endless") / "b", draft_noise=0.1, window=24, chat=True)


@pytest.fixture
def engine(bundle: Path) -> Iterator[Engine]:
    with load(bundle, threads=1, context=CONTEXT) as engine:
        yield engine


@pytest.mark.parametrize("most", [32, 63, 64, 1000])
def test_what_is_seen_depends_on_the_length_alone_and_moves_by_halves(most: int) -> None:
    rolling, before = Rolling(most), 0
    for length in range(1, 3 * most):
        text = list(range(length))
        seen, dropped = rolling.see(text), rolling.dropped(length)
        assert seen == text[:SINKS] + text[SINKS + dropped :]
        assert len(seen) <= most
        if dropped:
            assert len(seen) > most // 2
        assert dropped >= before
        before = dropped
        room = rolling.room(length)
        assert rolling.dropped(length + room) == dropped < rolling.dropped(length + room + 1)


def test_a_text_goes_on_with_its_first_and_last_tokens_in_sight(engine: Engine, bundle: Path) -> None:
    """Every token is the most likely one behind what is seen, scored by a model that never saw the rest."""
    with pytest.raises(CapacityError, match="let the text be endless"):
        engine.generate(LONG)
    assert engine.generate(PROMPT, max_new_tokens=300, ignore_eos=True).finish_reason == "capacity"
    result = engine.generate(PROMPT, max_new_tokens=300, ignore_eos=True, endless=True, drafter="none")
    assert (result.finish_reason, len(result.token_ids)) == ("length", 300)
    rolling = Rolling(CONTEXT - engine.exactness.widths[0] + 1)
    spec = engine.manifest.target
    model = Model(bundle / spec.graph, spec, capacity=CONTEXT, threads=1, providers=["CPUExecutionProvider"])
    text = [*PROMPT, *result.token_ids]
    assert result.stats.dropped_tokens == rolling.dropped(len(text) - 1) > 200
    for length in (len(PROMPT), rolling.most, rolling.most + 1, 150, 151, len(text) - 1):
        model.keep(0)
        seen = rolling.see(text[:length])
        logits = model.run(seen, [len(seen) - 1])
        assert logits[0, : engine.tokenizer.size].argmax() == text[length]


@pytest.mark.parametrize("grade", ["exact", "checked", "fast"])
@pytest.mark.parametrize("prompt", [PROMPT, LONG])
def test_drafts_change_nothing(engine: Engine, prompt: list[int], grade: str) -> None:
    """On a float32 decoder passes of all widths differ by next to nothing, so near-ties apart "fast" is the same as well."""
    options = {"max_new_tokens": 200, "ignore_eos": True, "endless": True}
    if grade == "checked":
        engine.__dict__["exactness"] = Exactness("checked", tuple(range(1, 9)), 0.02, (37,))
    options["exactness"] = "fast" if grade == "fast" else "exact"
    plain = engine.generate(prompt, drafter="none", **options)
    accepted = rechecked = 0
    for drafter in DRAFTERS:
        for length in (1, 4):
            found = engine.generate(prompt, drafter=drafter, draft_length=length, **options)
            assert found.token_ids == plain.token_ids, (drafter, length)
            assert found.stats.dropped_tokens == plain.stats.dropped_tokens > 100
            accepted, rechecked = accepted + found.stats.accepted, rechecked + found.stats.rechecked
    assert accepted > 100
    assert (rechecked > 0) == (grade == "checked")


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_near_ties_before_a_prompt_that_is_longer_than_the_cache_has_to_move_again(engine: Engine, drafter: str) -> None:
    """Every row is in doubt, and the cache holds fewer rows than the prompt has tokens."""
    engine.__dict__["exactness"] = Exactness("checked", tuple(range(1, 9)), 1e9, (37,))
    rolling = Rolling(CONTEXT)
    prompt = next(LONG[:length] for length in range(CONTEXT + 1, len(LONG)) if rolling.room(length) > 20)
    options = {"max_new_tokens": 16, "ignore_eos": True, "endless": True}
    plain = engine.generate(prompt, drafter="none", **options)
    found = engine.generate(prompt, drafter=drafter, draft_length=4, **options)
    assert found.token_ids == plain.token_ids
    assert found.stats.rechecked
    assert found.stats.dropped_tokens == plain.stats.dropped_tokens == rolling.dropped(len(prompt))


def test_sampled_text_with_a_seed_as_well(engine: Engine) -> None:
    options = {"max_new_tokens": 150, "ignore_eos": True, "endless": True, "do_sample": True, "seed": 5, "repetition_penalty": 1.1}
    texts = [engine.generate(PROMPT, drafter=drafter, **options).token_ids for drafter in ("none", *DRAFTERS)]
    assert all(text == texts[0] for text in texts)


def test_a_conversation_goes_on_and_reuses_rows(engine: Engine) -> None:
    chat = engine.chat(endless=True, max_new_tokens=20, ignore_eos=True)
    reused = [chat.send("and then?").result().stats.reused_tokens for _ in range(8)]
    assert max(reused[3:]) > CONTEXT // 2
    with pytest.raises(CapacityError):
        chat.send("and then?", endless=False)


def test_what_cannot_be_endless_is_refused(bundle: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="endless: 1 is not true or false"):
        engine.generate(PROMPT, endless=1)
    with load(bundle, threads=1, context=20) as small, pytest.raises(UsageError, match="endless: needs a context of 32"):
        small.generate(PROMPT, endless=True)
    models = engine.manifest.models
    head = dataclasses.replace(models["draft"], reads=("last",))
    monkeypatch.setattr(engine._drafting, "_manifest", dataclasses.replace(engine.manifest, models={**models, "draft": head}))
    with pytest.raises(UsageError, match="endless: drafter draft reads hidden states"):
        engine.generate(PROMPT, drafter="draft", endless=True)
    assert engine.generate(PROMPT, max_new_tokens=80, ignore_eos=True, endless=True).stats.dropped_tokens
