"""KV caches of 8 and 4 bits: the same verbs, the same text with every drafter, a quarter or an eighth of the memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgespec.bundle import open_bundle
from edgespec.errors import BundleError, RuntimeFailure, UsageError
from edgespec.runtime import load
from edgespec.runtime.memory.ahead import plan_bundle
from edgespec.runtime.models.kv import kv_choice, with_kv
from edgespec.runtime.models.model import Model
from edgespec.runtime.models.rows import cache_bytes
from tests.helpers.bundles import make_attention_bundle
from tests.helpers.onnxruntime import needs_quantised_kv

pytestmark = needs_quantised_kv
QUANTISED = pytest.mark.parametrize("kv", ["int8", "int4"])
TOKENS = np.random.default_rng(5).integers(0, 256, 64).tolist()
PROMPT = [7, 8, 9, 10] * 5 + [7, 8]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder over caches of three types, with a draft that often agrees with it."""
    return make_attention_bundle(
        tmp_path_factory.mktemp("kv") / "b", draft_noise=0.1, window=12, chat=True, kv=("float32", "int8", "int4"), capacity=1024
    )


def open_model(bundle: Path, kv: str) -> Model:
    spec = with_kv(open_bundle(bundle), kv).target
    return Model(bundle / spec.graph, spec, capacity=64, threads=1, providers=["CPUExecutionProvider"])


@QUANTISED
def test_every_drafter_writes_the_text_of_plain_decoding(bundle: Path, kv: str) -> None:
    with load(bundle, threads=1, kv=kv) as engine:
        assert engine.manifest.target.kv_dtype == kv
        assert engine.manifest.models["draft"].kv_dtype == kv
        plain = engine.generate(PROMPT, drafter="none", max_new_tokens=60)
        assert plain.stats.exactness == "exact"
        accepted = 0
        for drafter in ("ngram", "draft", "tree", "lookahead"):
            found = engine.generate(PROMPT, drafter=drafter, draft_length=3, max_new_tokens=60)
            assert found.token_ids == plain.token_ids
            accepted += found.stats.accepted
        assert accepted > 20
    with load(bundle, threads=1) as engine:
        assert engine.generate(PROMPT, drafter="none", max_new_tokens=60).token_ids != plain.token_ids, "else rounding would not show"


@QUANTISED
@pytest.mark.parametrize("kept", [0, 1, 9, 20])
def test_after_a_rollback_going_on_equals_a_fresh_run(bundle: Path, kv: str, kept: int) -> None:
    model, other = open_model(bundle, kv), open_model(bundle, kv)
    model.run(TOKENS[:20], [0])
    model.keep(kept)
    found = model.run(TOKENS[40:50], range(10))
    if kept:
        other.run(TOKENS[:kept], [])
    assert np.array_equal(found, other.run(TOKENS[40:50], range(10)))
    assert all(np.array_equal(*pair) for pair in zip(model.cache_rows(0, kept + 10), other.cache_rows(0, kept + 10), strict=True))


@QUANTISED
def test_a_branch_that_is_kept_goes_on_as_its_chain(bundle: Path, kv: str) -> None:
    """Rows of the second branch are moved together. Behind masked siblings the last bit of a sum may be another one, and with it the
    rounding of a few numbers; a row too far would be other numbers altogether."""
    tree, chain, wrong = (open_model(bundle, kv) for _ in range(3))
    for model in (tree, chain, wrong):
        model.run(TOKENS[:20], [19])
    for model, path in ((tree, (1, 3)), (wrong, (0, 2))):
        model.run([30, 31, 32, 33], range(4), parents=[-1, -1, 0, 1])
        model.keep_path(20, path)
    chain.run([31, 33], [1])
    assert tree.tokens == chain.tokens
    pairs = zip(tree.cache_rows(0, 22), chain.cache_rows(0, 22), wrong.cache_rows(0, 22), strict=True)
    for moved, direct, others in pairs:
        assert np.mean(moved != direct) < 0.01 < np.mean(others != direct)
    np.testing.assert_allclose(tree.run([34], [0]), chain.run([34], [0]), atol=0.1)


def test_rows_take_a_quarter_and_an_eighth(bundle: Path) -> None:
    manifest = open_bundle(bundle)
    sizes = [cache_bytes(with_kv(manifest, kv).target, 1) for kv in ("float32", "int8", "int4")]
    assert sizes == [4 * 64, 64, 32]
    plans = {kv: plan_bundle(bundle, kv=kv) for kv in ("float32", "int8")}
    parts = {kv: next(part.private for part in plan.parts if part.name == "KV cache of target") for kv, plan in plans.items()}
    assert parts == {"float32": 1024 * 256, "int8": 1024 * 64}
    for kv in ("float32", "int8"):
        stored = open_model(bundle, kv).cache_rows(0, 0)
        assert {array.dtype.name for array in stored} == {kv}


@QUANTISED
def test_a_conversation_is_set_aside_and_saved(bundle: Path, kv: str, tmp_path: Path) -> None:
    with load(bundle, threads=1, kv=kv) as engine:
        first, second = engine.chat(max_new_tokens=12), engine.chat(max_new_tokens=12)
        first.send("hello").result()
        second.send("and you").result()
        first.save(tmp_path / "saved")
        going_on = first.send("more").result()
        assert going_on.stats.reused_tokens > 15
        restored = engine.restore_chat(tmp_path / "saved", max_new_tokens=12).send("more").result()
        assert restored.token_ids == going_on.token_ids
        assert restored.stats.reused_tokens == going_on.stats.reused_tokens


def test_a_budget_takes_int8_only_where_it_is_allowed(bundle: Path) -> None:
    """Between what float32 and int8 caches need at full length, the context is cut, or the type changes, as the caller says."""
    most, least = (plan_bundle(bundle, kv=kv, context=1024).ceiling for kv in ("float32", "int8"))
    assert least < most
    cut = plan_bundle(bundle, context=1024, memory_budget=_budget_without_draft(bundle))
    allowed = plan_bundle(bundle, context=1024, kv="float32,int8", memory_budget=_budget_without_draft(bundle))
    assert cut.settings.kv == ("float32",)
    assert cut.settings.context < 1024
    assert allowed.settings.kv == ("int8",)
    assert allowed.settings.context == 1024
    assert "KV caches of int8, not float32, which changes the text" in allowed.steps


def _budget_without_draft(bundle: Path) -> int:
    """A little less than the full context takes when all that comes before the type of the caches is given up."""
    from edgespec.runtime.memory.degrade import ORDER
    from edgespec.runtime.memory.plan import footprint

    found = footprint(bundle, open_bundle(bundle))
    settings = found.widest(1024)
    for step in ORDER:
        if step.fields[0] in ("kv", "context"):
            break
        *_, settings = [settings, *step.smaller(settings)]
    return found.plan(settings).ceiling - 100_000


def test_an_engine_under_a_budget_says_what_it_took(bundle: Path) -> None:
    with load(bundle, threads=1, kv="int8") as engine:
        expected = engine.generate(PROMPT, drafter="none", max_new_tokens=30).token_ids
    with load(bundle, threads=1, kv="float32,int8", memory_budget="4GB") as engine:
        assert engine.settings.kv == ("float32", "int8"), "nothing has to be given up"
        assert engine.manifest.target.kv_dtype == "float32"
    with load(bundle, threads=1, kv=["int8", "float32"]) as engine:
        assert engine.generate(PROMPT, drafter="draft", draft_length=3, max_new_tokens=30).token_ids == expected


def test_what_cannot_be_had_is_refused_in_one_line(bundle: Path, tmp_path: Path) -> None:
    plain = make_attention_bundle(tmp_path / "plain")
    with pytest.raises(UsageError, match="has no int8 KV cache, only float32; export it with --kv float32,int8"):
        load(plain, kv="int8")
    for value in ("int3", "int8,int8", ""):
        with pytest.raises(UsageError, match="is not a type of KV cache"):
            load(bundle, kv=value)
    manifest = open_bundle(bundle)
    assert kv_choice("float32", manifest, "1.23.2") == ("float32",)
    for kv in ("int8", "float32,int8"):
        with pytest.raises(RuntimeFailure, match=r"needs ONNX Runtime 1\.28 or newer, this is 1\.27\.1"):
            kv_choice(kv, manifest, "1.27.1")
        assert kv_choice(kv, manifest, "1.28.0")


def test_a_graph_over_other_caches_than_the_manifest_says(bundle: Path) -> None:
    spec = open_bundle(bundle).target
    assert spec.kv_forms is not None
    with pytest.raises(BundleError, match=r"past_key_values\.0\.key is tensor\(int8\)"):
        Model(bundle / spec.kv_forms["int8"].graph, spec, capacity=64, threads=1, providers=["CPUExecutionProvider"])
