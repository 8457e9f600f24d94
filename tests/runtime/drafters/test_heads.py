"""Heads as drafters: the text is plain decoding's whatever they say, and where they are right it takes fewer passes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from edgespec.bundle import open_bundle
from edgespec.errors import BundleError, UsageError
from edgespec.export.heads.eagle import open_eagle
from edgespec.manifest import ModelSpec
from edgespec.runtime import Engine, load
from edgespec.runtime.drafters import Round
from edgespec.runtime.drafters.eagle import EagleCache
from edgespec.runtime.drafters.growth import Growth
from edgespec.runtime.drafters.medusa import Medusa, shape
from edgespec.runtime.drafters.tree import TreeCosts
from edgespec.runtime.models.model import Model
from edgespec.runtime.models.row_heads import RowHeads
from edgespec.runtime.models.token_map import UNSCORED, TokenMap, read_token_map
from edgespec.runtime.providers.session import DEFAULT_PROVIDERS
from edgespec.runtime.tuning.cost import Costs, RunningCosts
from edgespec.runtime.verify import verify
from tests.export.conftest import export
from tests.helpers.bundles import CHAT_TEMPLATE
from tests.helpers.checkpoints import CAPACITY, make_checkpoint, make_tokenizer
from tests.helpers.heads import Eagle, H, Text, make_eagle, oracle_eagle, oracle_medusa, target_shape, write_alone, write_medusa
from tests.helpers.speculation import counted_tokens

PROMPT = [*b"the quick brown fox"]
WRITTEN = 40
TAPPED = (1, 2)  # layers that EAGLE-3 listens to; the target has three


@dataclasses.dataclass(frozen=True)
class Made:
    """A target's checkpoint and text, bundles with heads that know the text, and a random EAGLE-3 head by itself."""

    checkpoint: Path
    text: Text
    float32: Path
    int8: Path
    random: Eagle
    alone: Path
    spec: ModelSpec

    def head(self) -> Model:
        return Model(self.alone / self.spec.graph, self.spec, capacity=CAPACITY, threads=1, providers=DEFAULT_PROVIDERS, alone=False)

    def given(self, context: list[int]) -> np.ndarray:
        """What the target gives the random head for all but the last token of ``context``."""
        hidden = Text.of(self.checkpoint, context[:-1], 0).hidden
        return torch.cat([hidden[layer] for layer in TAPPED], -1).numpy()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("heads")
    checkpoint = make_sure(make_checkpoint(folder / "checkpoint", tie_word_embeddings=False, seed=3))
    make_tokenizer(chat_template=CHAT_TEMPLATE).save_pretrained(checkpoint)
    text = Text.of(checkpoint, PROMPT, WRITTEN)
    medusa = str(write_medusa(folder / "medusa", oracle_medusa(text)))
    export(checkpoint, folder / "float32", medusa=medusa, eagle=str(oracle_eagle(text, "1").write(folder / "eagle")))
    three = oracle_eagle(text, "3", TAPPED).write(folder / "eagle3")
    export(checkpoint, folder / "int8", weights="int8", medusa=medusa, eagle=str(three))
    random = make_eagle("3", taps=len(TAPPED))
    random = dataclasses.replace(random, config=random.config | {"eagle_aux_hidden_state_layer_ids": list(TAPPED)})
    spec = write_alone(open_eagle(str(random.write(folder / "random")), target_shape(checkpoint)), folder, ("layer.1", "layer.2"))
    return Made(checkpoint, text, folder / "float32", folder / "int8", random, folder, spec)


@pytest.fixture(params=["float32", "int8"])
def engine(request: pytest.FixtureRequest, made: Made) -> Iterator[Engine]:
    with load(getattr(made, request.param), threads=1) as engine:
        yield engine


def make_sure(checkpoint: Path) -> Path:
    """The same text from a model that is surer of it, as trained ones are: its logits are larger."""
    tensors = load_file(checkpoint / "model.safetensors")
    save_file(tensors | {"lm_head.weight": 8 * tensors["lm_head.weight"]}, checkpoint / "model.safetensors", {"format": "pt"})
    return checkpoint


def medusa_of(bundle: Path) -> RowHeads:
    """Of whose accuracy nothing is known."""
    spec = dataclasses.replace(open_bundle(bundle).models["medusa"], accuracy=None)
    return RowHeads(bundle / spec.graph, spec, threads=1, providers=DEFAULT_PROVIDERS)


@pytest.mark.parametrize("exactness", ["exact", "fast"])
@pytest.mark.parametrize("drafter", ["medusa", "eagle", "ngram,eagle"])
def test_the_text_is_that_of_plain_decoding(engine: Engine, drafter: str, exactness: str) -> None:
    accepted = different = 0
    for prompt in (PROMPT, [*b"something else"]):
        plain = engine.generate(prompt, drafter="none", max_new_tokens=WRITTEN, ignore_eos=True, exactness=exactness)
        for length in (1, 3, 7, "auto"):
            found = engine.generate(
                prompt, drafter=drafter, draft_length=length, max_new_tokens=WRITTEN, ignore_eos=True, exactness=exactness
            )
            assert len(found.token_ids) == WRITTEN
            different += found.token_ids != plain.token_ids
            accepted += found.stats.accepted
    # Over 8 bits near-ties fall the other way in wider passes; over floats they are scored again.
    assert not different or (exactness == "fast" and engine.exactness.grade == "exact")
    assert accepted > 0


def test_a_head_that_is_right_saves_passes(made: Made) -> None:
    with load(made.float32, threads=1) as engine:
        plain = engine.generate(PROMPT, drafter="none", max_new_tokens=WRITTEN, ignore_eos=True)
        for drafter, least in (("medusa", 2.5), ("eagle", 2.5)):
            found = engine.generate(PROMPT, drafter=drafter, draft_length=3, max_new_tokens=WRITTEN, ignore_eos=True)
            assert found.token_ids == plain.token_ids
            assert found.stats.tokens_per_pass > least, (drafter, found.stats)
            assert found.stats.draft_passes > 0


def test_verify_compares_heads(made: Made) -> None:
    with load(made.int8, threads=1) as engine:
        report = verify(engine, prompts=[PROMPT], max_new_tokens=12)
        assert report.ok
        assert {case.drafter for case in report.cases} >= {"medusa", "eagle", "ngram"}


def test_eagle_3_that_is_right_saves_passes(made: Made, tmp_path: Path) -> None:
    head = oracle_eagle(made.text, "3", TAPPED).write(tmp_path / "head")
    export(made.checkpoint, tmp_path / "bundle", eagle=str(head))
    with load(tmp_path / "bundle", threads=1) as engine:
        plain = engine.generate(PROMPT, drafter="none", max_new_tokens=WRITTEN, ignore_eos=True)
        found = engine.generate(PROMPT, drafter="eagle", draft_length=1, max_new_tokens=WRITTEN, ignore_eos=True)
        assert list(found.token_ids) == list(plain.token_ids) == made.text.tokens[len(PROMPT) :]
        assert found.stats.tokens_per_pass > 1.8


@pytest.mark.parametrize("length", [1, 4, "auto"])
def test_eagle_drafts_the_same_in_its_own_vocabulary_as_in_the_targets(made: Made, length: Any) -> None:
    """An edit that changes nothing asks for the target's ids."""
    with load(made.int8, threads=1) as engine:
        assert engine.manifest.models["eagle"].token_ids is not None
        options: dict[str, Any] = {"drafter": "eagle", "draft_length": length, "max_new_tokens": 40, "ignore_eos": True}
        if length == "auto":  # which would depend on what passes take
            engine._drafting.__dict__["running_costs"] = RunningCosts(Costs({1: 1.0, 16: 1.05}, {"eagle": 0.01}, True))
            engine._drafting.running_costs.saw_pass = engine._drafting.running_costs.saw_draft = lambda *_: None  # type: ignore[method-assign]
        found = engine.generate(PROMPT, **options)
        engine._drafting._learnt.clear()  # else the second text would begin with what the first has shown
        wide = engine.generate(PROMPT, **options, logit_bias={5: 0.0})
        assert found.token_ids == wide.token_ids
        assert found.stats.drafted == wide.stats.drafted > 10
        assert found.stats.accepted_by_drafter == wide.stats.accepted_by_drafter


def test_over_rounds_eagle_drafts_what_its_formula_says(made: Made) -> None:
    """A random EAGLE-3 head: rows of the text take the target's features, drafted ones the head's own, and nothing of a round stays that
    the text did not take."""
    model = made.head()
    given = np.zeros((0, 0), np.float32)
    cache = EagleCache(model, lambda: given, read_token_map(made.alone, model.spec, 288))
    rng = np.random.default_rng(0)
    context = list(PROMPT)
    ids = made.random.target_ids.numpy()
    for _ in range(6):
        given = made.given(context)
        row = cache.begin(context, 259)
        assert row is not None
        scored = {(): row[ids].copy()}
        growth = Growth(True)
        a, b = growth.add(-1, 65, 0.5), growth.add(-1, 66, 0.4)
        scored[(65,)], scored[(66,)] = cache.score(growth, [a, b])[:, ids].copy()
        c, d = growth.add(b, 67, 0.5), growth.add(a, 68, 0.5)
        scored[(66, 67)], scored[(65, 68)] = cache.score(growth, [c, d])[:, ids].copy()
        for path, found in scored.items():
            np.testing.assert_allclose(found, formula(made, given, context, path), atol=2e-3)
        assert row.max() > UNSCORED
        cache.settle()
        assert model.tokens == context[:-1]
        # Sometimes the text takes a drafted path, sometimes another one.
        context += [[65, 68, 3], [66], [9, 9, 9], [65]][int(rng.integers(4))]


def formula(made: Made, given: np.ndarray, context: list[int], path: tuple[int, ...]) -> np.ndarray:
    """Logits [Vd] after ``context`` and ``path`` from the formula, without a cache."""
    features, own = torch.from_numpy(given.copy()), torch.zeros(0, H)
    for count in range(len(path) + 1):
        logits, hidden = made.random.forward(made.text.target, [*context[1:], *path[:count]], features, own)
        own = hidden[len(given) - 1 :]
    return logits[-1].numpy()


def test_eagle_goes_on_from_what_two_texts_share(made: Made) -> None:
    model, other = made.head(), made.head()
    ran = counted_tokens(model)
    given = np.zeros((0, 0), np.float32)
    first = [*PROMPT, 1, 2, 3]
    for context in (first, [*PROMPT, 1, 7, 8, 9], [5, *first[1:]], first):
        given = made.given(context)
        ran.clear()
        shared = next((index for index, (a, b) in enumerate(zip(model.tokens, context, strict=False)) if a != b), len(model.tokens))
        found = EagleCache(model, lambda: given).begin(context, 259)  # noqa: B023 - it is called at once
        other.keep(0)
        wanted = EagleCache(other, lambda: given).begin(context, 259)  # noqa: B023
        assert sum(ran) == len(context) - 1 - max(min(shared, len(context) - 1) - 1, 0)
        np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_eagle_bridges_tokens_that_no_pass_has_seen(made: Made) -> None:
    """After forced tokens the target's features end earlier: the head goes on with its own, and takes the target's when they are there."""
    model = made.head()
    context = [*PROMPT, 1, 2, 3]
    all_given = made.given(context)
    given = all_given[:-2]
    cache = EagleCache(model, lambda: given, read_token_map(made.alone, model.spec, 288))
    found = cache.begin(context, 259)
    assert found is not None
    wanted = formula(made, given, context[:-2], tuple(context[-2:]))
    np.testing.assert_allclose(found[made.random.target_ids.numpy()], wanted, atol=2e-3)
    given = all_given
    found = cache.begin(context, 259)
    assert found is not None
    np.testing.assert_allclose(found[made.random.target_ids.numpy()], formula(made, given, context, ()), atol=2e-3)
    given = all_given[:0]
    assert cache.begin(context, 259) is None
    assert cache.begin([*context, 259], 259) is None


def test_conversations_take_turns(made: Made, tmp_path: Path) -> None:
    """The text is that of plain decoding, and a head's rows of a conversation come back with it, also from a file."""
    said = ["abcdefgh" * 3, "ijk"]

    def turns(drafter: str) -> tuple[list[str], list[int]]:
        with load(made.int8, threads=1) as engine:
            chats = [engine.chat(drafter=drafter, draft_length=7, max_new_tokens=12, ignore_eos=True) for _ in range(2)]
            texts = [chat.send(text).result().text for chat in chats for text in said[:1]]
            ran = counted_tokens(engine._models.get(drafter)) if drafter == "eagle" else []
            first_passes = []
            for chat in chats:
                ran.clear()
                texts.append(chat.send(said[1]).result().text)
                first_passes += ran[:1]
            chats[0].save(tmp_path / drafter)
            restored = engine.restore_chat(tmp_path / drafter, drafter=drafter, draft_length=7, max_new_tokens=12, ignore_eos=True)
            ran.clear()
            texts.append(restored.send(said[1]).result().text)
            return texts, first_passes + ran[:1]

    plain, _ = turns("none")
    assert turns("medusa")[0] == plain
    found, first_passes = turns("eagle")
    assert found == plain
    # What was said since: the last of the answer, three tokens and the template's. The first turn alone has more than thirty tokens.
    assert len(first_passes) == 3
    assert max(first_passes) < 15


def test_grammars_that_force_tokens(made: Made) -> None:
    pytest.importorskip("llguidance")
    with load(made.float32, threads=1) as engine:
        options = {"regex": "(red|green), (always blue|never blue)+, and[a-z]{12}", "max_new_tokens": 60}
        plain = engine.generate(PROMPT, drafter="none", **options)
        assert plain.stats.forced > 5
        for drafter in ("medusa", "eagle"):
            found = engine.generate(PROMPT, drafter=drafter, draft_length=3, **options)
            assert found.token_ids == plain.token_ids
            assert found.stats.drafted > 0


def test_medusa_heads_wait_for_forced_tokens(made: Made) -> None:
    heads = medusa_of(made.float32)
    tokens, hidden = made.text.tokens, made.text.hidden[-1].numpy()
    at = len(PROMPT) + 4
    for behind, expected in ((0, 3), (1, 2), (2, 1), (3, 0)):
        given = hidden[: at - 1 - behind]
        tree = Medusa(heads, lambda: given, branches=False).propose(tokens[:at], 8)  # noqa: B023 - it is called at once
        assert list(tree.tokens[:expected]) == tokens[at : at + expected], behind
        assert bool(len(tree)) == bool(expected)
        if expected:
            assert max(tree.depths()) == expected
    assert len(Medusa(heads, lambda: hidden[:0]).propose(tokens[:at], 8)) == 0


def test_medusa_learns_which_ranks_come_true(made: Made) -> None:
    heads = medusa_of(made.float32)
    hidden = made.text.hidden[-1].numpy()
    costs = TreeCosts(lambda width: 10.0 + 0.5 * width, 1.0)
    drafter = Medusa(heads, lambda: hidden[:20], costs=costs)
    context = made.text.tokens[:21]
    first = drafter.propose(context, 8)
    assert 1 <= len(first) <= 8
    proposed = []
    for _ in range(60):  # a text in which the head is never right
        tree = drafter.propose(context, 8)
        proposed.append(len(tree))
        drafter.observe(Round([*context, 258], tree, ()))
    assert proposed[0] > proposed[-1] == 0, "it costs more than it gives"
    assert "of the first head's likeliest tokens right" in (drafter.off or "")
    tried = 0
    for _ in range(200):
        tree = drafter.propose(context, 8)
        tried += len(tree) > 0
        drafter.observe(Round([*context, 258], tree, ()))
    assert 2 <= tried <= 4, "and is tried again now and then"
    for _ in range(200):  # It is right from now on.
        tree = drafter.propose(context, 8)
        drafter.observe(Round([*context, *made.text.tokens[21:25]], tree, (0, 1, 2)))
    assert list(tree.tokens[:3]) == made.text.tokens[21:24]


def test_the_shape_of_a_medusa_tree_has_the_most_value() -> None:
    growth = shape([(0.6, 0.2, 0.1), (0.5, 0.3, 0.05)], 5, branches=True)
    assert [round(value, 3) for value in growth.values] == [0.6, 0.3, 0.2, 0.18, 0.1]
    assert growth.parents == [-1, 0, -1, 0, -1] or growth.parents == [-1, 0, -1, 0, 2]
    assert len(shape([(0.9, 0.1)], 8, branches=True)) == 2


def test_a_reduced_vocabulary_is_widened() -> None:
    token_map = TokenMap(np.array([5, 0, 3]), 7)
    found = token_map.widen(np.array([[1.0, 2.0, 3.0]], np.float32))
    assert found.tolist() == [[2.0, UNSCORED, UNSCORED, 3.0, UNSCORED, 1.0, UNSCORED]]
    assert token_map.widen(np.zeros((2, 3), np.float32)).shape == (2, 7)
    assert np.exp(UNSCORED - np.float32(-1e4)) == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\0" * 8, "8 bytes"), (np.full(120, 288, "<i4").tobytes(), "do not have"), (np.zeros(120, "<i4").tobytes(), "a token twice")],
)
def test_a_damaged_map_is_refused(content: bytes, message: str, made: Made, tmp_path: Path) -> None:
    assert made.spec.token_ids is not None
    (tmp_path / made.spec.token_ids).write_bytes(content)
    with pytest.raises(BundleError, match=message):
        read_token_map(tmp_path, made.spec, 288)


def test_a_graph_that_is_not_the_heads_is_refused(made: Made) -> None:
    specs = open_bundle(made.float32).models
    with pytest.raises(BundleError, match="not the graph of heads"):
        RowHeads(made.float32 / specs["eagle"].graph, specs["medusa"], threads=1, providers=DEFAULT_PROVIDERS)
    other = dataclasses.replace(specs["medusa"], accuracy=((0.5,),))
    with pytest.raises(BundleError, match="accuracy has others"):
        RowHeads(made.float32 / other.graph, other, threads=1, providers=DEFAULT_PROVIDERS)
    wide = dataclasses.replace(specs["eagle"], features=128)
    with pytest.raises(BundleError, match="features"):
        Model(made.float32 / wide.graph, wide, capacity=32, threads=1, providers=DEFAULT_PROVIDERS)


def test_a_head_is_given_features(made: Made) -> None:
    model = made.head()
    with pytest.raises(ValueError, match="needs features of width 128, 64"):
        model.run([1], [0])
    with pytest.raises(ValueError, match="needs features"):
        model.run([1, 2], [0], features=np.zeros((1, 64), np.float32))


def test_typical_acceptance_takes_what_is_typical_and_says_so(made: Made) -> None:
    with load(made.float32, threads=1) as engine:
        options = {"max_new_tokens": WRITTEN, "ignore_eos": True, "do_sample": True, "temperature": 0.7, "seed": 1, "draft_length": 3}
        lossless = engine.generate(PROMPT, drafter="medusa", acceptance="match", **options)
        typical = engine.generate(PROMPT, drafter="medusa", acceptance="typical", **options)
        assert typical.stats.accepted > lossless.stats.accepted
        assert typical.stats.exactness == "typical"
        assert lossless.stats.exactness == engine.exactness.grade
        with pytest.raises(UsageError, match="acceptance: has no effect without do_sample"):
            engine.generate(PROMPT, acceptance="typical")
