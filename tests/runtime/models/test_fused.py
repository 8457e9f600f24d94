"""A head's first step inside the target's graph: the target's bits stay, drafts are the same, and the head has no pass for them."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from edgespec.bundle import open_bundle
from edgespec.errors import BundleError
from edgespec.runtime import Engine, load
from edgespec.runtime.drafters.first_step import FirstStepUse
from edgespec.runtime.models.fused import PLAIN, WITH_HEAD, FusedModel, head_inside
from edgespec.runtime.models.model import Model
from edgespec.runtime.providers.session import DEFAULT_PROVIDERS
from edgespec.runtime.stream import GenerationResult
from edgespec.runtime.tuning.cost import Costs, RunningCosts
from tests.export.conftest import export
from tests.helpers.bundles import CHAT_TEMPLATE, VOCAB
from tests.helpers.checkpoints import CAPACITY, make_checkpoint, make_tokenizer
from tests.helpers.heads import Text, make_eagle, oracle_eagle
from tests.helpers.speculation import counted_tokens

PROMPT = [*b"the quick brown fox"]
WRITTEN = 40
PLENTY = "8GB"  # a budget that nothing has to be given up for; with one, models do not share graphs
OWN = {"max_new_tokens": WRITTEN, "ignore_eos": True}


@dataclasses.dataclass(frozen=True)
class Made:
    """Bundles of one target: in float32 with an EAGLE-1 head that knows its text, and in int8 with a random EAGLE-3 head."""

    text: Text
    float32: Path
    int8: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("fused")
    checkpoint = as_trained(make_checkpoint(folder / "checkpoint", tie_word_embeddings=False, seed=3))
    make_tokenizer(chat_template=CHAT_TEMPLATE).save_pretrained(checkpoint)
    text = Text.of(checkpoint, PROMPT, WRITTEN)
    export(checkpoint, folder / "float32", eagle=str(oracle_eagle(text, "1").write(folder / "eagle")))
    random = make_eagle("3", taps=2)
    random = dataclasses.replace(random, config=random.config | {"eagle_aux_hidden_state_layer_ids": [1, 2]})
    export(checkpoint, folder / "int8", weights="int8", eagle=str(random.write(folder / "eagle3")))
    return Made(text, folder / "float32", folder / "int8")


def as_trained(checkpoint: Path) -> Path:
    """Ids that are no tokens are never the likeliest, as in trained models."""
    tensors = load_file(checkpoint / "model.safetensors")
    tensors["lm_head.weight"][VOCAB:] = 0
    save_file(tensors, checkpoint / "model.safetensors", {"format": "pt"})
    return checkpoint


@pytest.fixture
def engine(made: Made) -> Iterator[Engine]:
    with load(made.float32, threads=1) as engine:
        yield engine


@dataclasses.dataclass(frozen=True)
class Pair:
    """A target by itself, and one with its head inside."""

    alone: Model
    fused: FusedModel
    head: Model


def open_pair(bundle: Path) -> Pair:
    models = open_bundle(bundle).models
    target, head = models["target"], models["eagle"]
    how: dict[str, Any] = {"capacity": CAPACITY, "threads": 1, "providers": DEFAULT_PROVIDERS}
    assert head.fused is not None
    alone, own = (Model(bundle / spec.graph, spec, **how) for spec in (target, head))
    return Pair(alone, FusedModel(bundle / head.fused, target, head, **how), own)


def test_the_targets_bits_are_those_of_the_target_alone(made: Made) -> None:
    """Chains, trees, padded passes and rollback, with the head in the pass and without."""
    pair = open_pair(made.int8)
    steps = pair.fused.attach(pair.head)
    rng = np.random.default_rng(0)
    for wanted, padded in ((True, False), (False, False), (True, True)):
        steps.wanted = wanted
        for model in (pair.alone, pair.fused):
            model.keep(0)
            model.attends_alone = not padded
        for count, parents, width, kept in (
            (17, None, 17, range(17)),
            (4, None, 6, range(3)),
            (5, (-1, 0, -1, 2, 3), 5, (0, 1)),
            (5, (-1, 0, 0, 2, 1), 8, (0, 2, 3)),
            (1, None, 1, (0,)),
        ):
            tokens, start = rng.integers(0, 256, count).tolist(), pair.alone.length
            logits = [model.run(tokens, range(count), parents, width).copy() for model in (pair.alone, pair.fused)]
            np.testing.assert_array_equal(*logits)
            for model in (pair.alone, pair.fused):
                model.keep_path(start, list(kept))
            for rows in zip(pair.alone.cache_rows(0, pair.alone.length), pair.fused.cache_rows(0, pair.alone.length), strict=True):
                np.testing.assert_array_equal(*rows)
            assert pair.head.tokens == (pair.fused.tokens if wanted else [])


def test_rows_of_the_head_are_those_of_its_own_graph(made: Made) -> None:
    """A prompt in two chunks, a verified chain and a tree of which a branch is kept; the head takes the text where it is known and the
    target's choice elsewhere."""
    pair = open_pair(made.int8)
    steps = pair.fused.attach(pair.head)
    context = [*PROMPT, 65]
    steps.begin(context)
    pair.fused.run(context[:8], [7])
    assert pair.head.taken.tolist() == context[1:9]
    first = pair.fused.run(context[8:19], [10]).argmax()
    assert pair.head.taken.tolist() == [*context[1:19], 65]
    assert first >= 0
    choices = pair.fused.run([65, 66, 67], range(3), width=4).argmax(axis=1).tolist()
    assert pair.head.taken.tolist()[-3:] == choices
    pair.fused.keep_path(19, (0, 1))
    choices += pair.fused.run([1, 2, 3, 4, 5], range(5), (-1, 0, 0, 2, 3)).argmax(axis=1).tolist()
    said = {row: steps.logits_of(21 + row).copy() for row in range(5)}  # type: ignore[union-attr]
    pair.fused.keep_path(21, (0, 2, 3))
    assert pair.head.tokens == pair.fused.tokens == [*context[:19], 65, 66, 1, 3, 4]
    assert pair.head.taken.tolist()[-5:] == [choices[0], choices[1], choices[3], choices[5], choices[6]]
    np.testing.assert_array_equal(steps.logits_of(23), said[3])
    assert steps.logits_of(24) is None
    pair.fused.attends_alone = False  # a row of attention more than there are tokens
    choice = int(pair.fused.run([9], [0]).argmax())
    assert pair.head.taken.tolist()[-1] == choice
    last = steps.logits_of(24)
    assert last is not None

    own = open_pair(made.int8).head
    wanted = own.run(pair.head.taken.tolist(), range(25), features=pair.fused.features)
    np.testing.assert_allclose(np.concatenate([said[0], said[2], said[3], last]), wanted[-4:], atol=0.05)
    for row, (found, meant) in enumerate(zip(pair.head.cache_rows(0, 25), own.cache_rows(0, 25), strict=True)):
        np.testing.assert_allclose(found, meant, atol=0.05, err_msg=str(row))
    assert wanted.std() > 0.3


@pytest.mark.parametrize("exactness", ["exact", "fast"])
def test_drafts_are_the_same_without_passes_of_the_head(made: Made, exactness: str) -> None:
    """Chains of one token and more, and trees. Greedy, so each round begins with a first step that came with the round before."""
    with load(made.float32, threads=1) as engine, load(made.float32, threads=1, memory_budget=PLENTY) as apart:
        assert isinstance(engine._model("target"), FusedModel)
        assert type(apart._model("target")) is Model
        plain = apart.generate(PROMPT, drafter="none", exactness=exactness, **OWN)
        for length in (1, 3, 7):
            found, other = (
                each.generate(PROMPT, drafter="eagle", draft_length=length, exactness=exactness, **OWN) for each in (engine, apart)
            )
            assert found.token_ids == other.token_ids == plain.token_ids
            assert found.stats.accepted_by_drafter == other.stats.accepted_by_drafter
            assert found.stats.accepted > 0
            rounds = sum(count for drafted, count in found.stats.rounds_by_draft_length.items() if drafted)
            assert other.stats.draft_passes - found.stats.draft_passes == rounds, length
            assert length > 1 or found.stats.draft_passes == 0


@pytest.mark.parametrize("apart_ms", [0.01, 50.0])
def test_behind_n_grams_a_pass_makes_the_step_where_that_is_cheaper(made: Made, apart_ms: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs are given. The text begins to repeat itself, so n-grams are asked in most rounds; it is the same in any case."""
    costs = Costs({1: 10.0, 8: 10.1}, {"eagle": apart_ms}, True, {"eagle": 1.0})
    monkeypatch.setattr("edgespec.runtime.tuning.cost.measure", lambda *_: costs)
    monkeypatch.setattr("edgespec.runtime.tuning.cost.RunningCosts.saw_pass", lambda *_: None)
    inside: list[bool] = []
    observe = FirstStepUse.observe
    monkeypatch.setattr(FirstStepUse, "observe", lambda use, **how: inside.append(how["inside"]) or observe(use, **how))
    how = {"max_new_tokens": 120, "ignore_eos": True}
    with load(made.float32, threads=1, pack_cache=False) as engine:
        found = engine.generate(PROMPT, drafter="ngram,eagle", **how)
        assert found.token_ids == engine.generate(PROMPT, drafter="none", **how).token_ids
    assert set(found.stats.accepted_by_drafter) >= {"ngram", "eagle"}
    assert all(inside) if apart_ms > 1 else not all(inside)
    assert any(inside)


@pytest.mark.parametrize("acceptance", ["match", "ratio"])
def test_sampled_text_falls_back_to_the_heads_own_graph(made: Made, acceptance: str) -> None:
    how = OWN | {"do_sample": True, "temperature": 1.5, "acceptance": acceptance, "draft_length": 2}
    with load(made.float32, threads=1) as engine, load(made.float32, threads=1, memory_budget=PLENTY) as apart:
        for seed in range(4):
            found, other = (each.generate(PROMPT, drafter="eagle", seed=seed, **how) for each in (engine, apart))
            assert found.token_ids == other.token_ids
            assert 0 < found.stats.draft_passes < other.stats.draft_passes + found.stats.target_passes
            if acceptance == "match":
                assert found.token_ids == engine.generate(PROMPT, drafter="none", seed=seed, **how | {"draft_length": "auto"}).token_ids


def test_with_penalties_and_grammars_the_text_is_plain_decodings(engine: Engine) -> None:
    """Tokens that are committed are then not the ones that the head took in the pass."""
    found, plain = (engine.generate(PROMPT, drafter=name, repetition_penalty=3.0, **OWN) for name in ("eagle", "none"))
    assert found.token_ids == plain.token_ids
    pytest.importorskip("llguidance")
    how = {"regex": "(red|green), (always blue|never blue)+, and[a-z]{12}", "max_new_tokens": 60}
    found, plain = (engine.generate(PROMPT, drafter=name, draft_length=3, **how) for name in ("eagle", "none"))
    assert found.token_ids == plain.token_ids
    assert found.stats.forced > 5


def test_conversations_and_prompts_that_share_a_beginning_need_no_pass_to_catch_up(engine: Engine, tmp_path: Path) -> None:
    how: dict[str, Any] = {"drafter": "eagle", "draft_length": 1, "max_new_tokens": 6, "ignore_eos": True}
    said = ["abcdefgh", "ijk", "lm"]

    def turns(drafter: str) -> list[str]:
        chat = engine.chat(**how | {"drafter": drafter})
        return [chat.send(text).result().text for text in said]

    ran = counted_tokens(engine._models.get("eagle"))
    first = turns("eagle")
    assert ran == []
    plain = turns("none")
    assert first == plain
    engine.generate(PROMPT, **how)
    ran.clear()
    chats = [engine.chat(**how) for _ in range(2)]
    found = [chat.send(said[0]).result().text for chat in chats]
    found += [chat.send(said[1]).result().text for chat in chats]
    chats[0].save(tmp_path / "chat")
    found.append(engine.restore_chat(tmp_path / "chat", **how).send(said[2]).result().text)
    assert found == [plain[0], plain[0], plain[1], plain[1], plain[2]]
    assert ran == [], "rows of the head come back with those of the target"
    engine.generate([*PROMPT, 1, 2, 3], **how)
    engine.generate([*PROMPT, 1, 7, 8, 9], **how)
    assert ran == [1], "of what two prompts share, the last row took a token that is not shared"


def test_a_head_that_was_not_there_catches_up_in_its_own_graph(engine: Engine) -> None:
    """After text without it, and after a text that was stopped in the middle."""
    ran = counted_tokens(engine._models.get("eagle"))
    engine.generate(PROMPT, drafter="none", **OWN)
    plain = engine.generate([*PROMPT, 1], drafter="none", **OWN)
    engine.generate(PROMPT, drafter="ngram", draft_length=2, **OWN)
    found = engine.generate([*PROMPT, 1], drafter="eagle", draft_length=1, **OWN)
    assert found.token_ids == plain.token_ids
    assert len(ran) == 1, "once for the prompt"
    stream = engine.stream(PROMPT, drafter="eagle", draft_length=3, **OWN)
    next(iter(stream))
    stream.close()
    again = engine.generate([*PROMPT, 1], drafter="eagle", draft_length=3, **OWN)
    assert again.token_ids == plain.token_ids


def test_a_head_for_which_there_is_no_memory_is_let_go(engine: Engine) -> None:
    target = engine._model("target")
    assert isinstance(target, FusedModel)
    plain = engine.generate(PROMPT, drafter="none", **OWN)
    engine.generate(PROMPT, drafter="eagle", draft_length=3, **OWN)
    engine.trim()
    assert target._steps is None, "a head that is not loaded is not held either"
    assert engine.generate(PROMPT, drafter="eagle", draft_length=3, **OWN).token_ids == plain.token_ids
    head = engine._models.get("eagle")

    def fails(*_: Any, **__: Any) -> Any:
        raise MemoryError

    head.run = fails  # type: ignore[method-assign]
    found = engine.generate(PROMPT, drafter="eagle", draft_length=3, **OWN)
    assert found.token_ids == plain.token_ids
    assert "no memory" in (found.stats.speculation_off or "")
    assert target._steps is None
    assert "eagle" not in engine.drafters


def test_a_pass_without_memory_is_run_again_without_the_head(engine: Engine) -> None:
    target = engine._model("target")
    assert isinstance(target, FusedModel)
    plain = engine.generate(PROMPT, drafter="none", **OWN)
    session, failed = target._session.run_with_iobinding, []

    def fails_once(binding: Any) -> None:
        if len(failed) == 5:
            failed.append(0)
            raise MemoryError
        failed.append(0)
        session(binding)

    class Failing:
        run_with_iobinding = staticmethod(fails_once)
        io_binding = target._session.io_binding

    target._session = Failing
    found = engine.generate(PROMPT, drafter="eagle", draft_length=3, **OWN)
    assert found.token_ids == plain.token_ids
    assert "dropped the draft model" in " ".join(found.stats.degraded)
    assert target._steps is None


def with_costs(engine: Engine, pass_ms: dict[int, float]) -> Engine:
    """The engine with these costs, whatever passes take."""
    running = RunningCosts(Costs(pass_ms, {"eagle": 0.2}, True, {"eagle": 0.05}))
    running.saw_pass = lambda *_: None  # type: ignore[method-assign]
    engine._drafting.__dict__ |= {"costs": running.start, "running_costs": running}
    return engine


def test_auto_asks_the_n_grams_first_and_then_the_head_where_it_is_sure(made: Made, engine: Engine) -> None:
    """With a flat curve both draft. Where every token of a pass costs as much as a pass, none is sure enough."""
    twice = [*made.text.tokens, *PROMPT]

    def auto(pass_ms: dict[int, float]) -> GenerationResult:
        return with_costs(engine, pass_ms).generate(twice, drafter="auto", exactness="fast", max_new_tokens=24, ignore_eos=True)

    plain = engine.generate(twice, drafter="none", exactness="fast", max_new_tokens=24, ignore_eos=True)
    flat = auto({1: 10.0, 16: 10.4})
    steep = auto({1: 1.0, 16: 16.0})
    assert flat.token_ids == steep.token_ids == plain.token_ids
    assert flat.stats.drafter == "auto"
    assert {"ngram", "eagle"} <= flat.stats.drafted_by_drafter.keys()
    assert "eagle" not in steep.stats.drafted_by_drafter


def test_a_text_without_the_head_has_passes_of_the_target_alone(engine: Engine) -> None:
    target = engine._model("target")
    for drafter, variant in (("eagle", WITH_HEAD), ("none", PLAIN), ("ngram,eagle", WITH_HEAD), ("ngram", PLAIN)):
        engine.generate(PROMPT, drafter=drafter, draft_length=2, **OWN)
        assert target._variant == variant, drafter


def test_a_head_that_rests_costs_the_target_nothing(engine: Engine) -> None:
    with_costs(engine, {1: 1.0, 16: 16.0}).generate(PROMPT, drafter="eagle", exactness="fast", **OWN)
    target = engine._model("target")
    assert isinstance(target, FusedModel)
    assert target._steps is not None
    assert not target._steps.wanted


def test_a_bundle_without_such_a_graph_works(made: Made, tmp_path: Path) -> None:
    shutil.copytree(made.float32, tmp_path / "bundle")
    path = tmp_path / "bundle" / "edgespec.json"
    manifest = json.loads(path.read_text())
    fused = manifest["models"]["eagle"].pop("fused")
    manifest["files"] = [file for file in manifest["files"] if file["name"] != fused]
    path.write_text(json.dumps(manifest))
    (tmp_path / "bundle" / fused).unlink()
    with load(tmp_path / "bundle", threads=1) as engine:
        assert type(engine._model("target")) is Model
        plain, found = (engine.generate(PROMPT, drafter=name, draft_length=3, **OWN) for name in ("none", "eagle"))
        assert found.token_ids == plain.token_ids
        assert found.stats.accepted > 0


def test_a_graph_that_is_not_the_one_of_the_manifest_is_refused(made: Made, tmp_path: Path) -> None:
    models = open_bundle(made.float32).models
    how: dict[str, Any] = {"capacity": CAPACITY, "threads": 1, "providers": DEFAULT_PROVIDERS}
    with pytest.raises(BundleError, match="no input"):
        FusedModel(made.float32 / models["target"].graph, models["target"], models["eagle"], **how)
    pair = open_pair(made.float32)
    with pytest.raises(ValueError, match="another head"):
        pair.fused.attach(open_pair(made.int8).head)
    shutil.copytree(made.float32, tmp_path / "bundle")
    path = tmp_path / "bundle" / "edgespec.json"
    manifest = json.loads(path.read_text())
    manifest["models"]["target"]["fused"] = manifest["models"]["eagle"]["fused"]
    path.write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=r"models.target.fused: .* is for a draft head with a cache"):
        open_bundle(tmp_path / "bundle")
    assert head_inside(open_bundle(made.float32)) == "eagle"
