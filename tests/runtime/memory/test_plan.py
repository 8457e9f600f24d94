"""What an engine will take, what is given up for a budget and in which order, and that the text stays the same."""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgespec.bundle import open_bundle
from edgespec.errors import BundleError, CapacityError, UsageError
from edgespec.runtime import load
from edgespec.runtime.memory.ahead import plan_bundle
from edgespec.runtime.memory.degrade import ORDER, fit
from edgespec.runtime.memory.measure import usage
from edgespec.runtime.memory.plan import LEAST_ROWS, Footprint, Part, Settings
from edgespec.runtime.memory.weights import Matrix, read_weights
from tests.helpers.bundles import make_attention_bundle, make_lookup_bundle

FIELDS = ("chunk", "width", "draft_window", "drafts", "kv", "context")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan") / "b"
    return make_attention_bundle(folder, draft_noise=0.1, kv=("float32", "int8"), capacity=4096, max_width=16)


@pytest.fixture
def footprint(bundle: Path) -> Footprint:
    return Footprint(bundle, open_bundle(bundle), Part("held", 40_000_000, 10_000_000))


def test_weights_are_read_as_onnx_reads_them(bundle: Path) -> None:
    graph = onnx.load(str(bundle / "target.onnx")).graph
    weights = read_weights(bundle / "target.onnx")
    assert weights.inline == sum(numpy_helper.to_array(tensor).nbytes for tensor in graph.initializer)
    assert weights.nodes == len(graph.node)
    assert weights.query_heads == 2
    products = [node.input[1] for node in graph.node if node.op_type == "MatMul"]
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    assert weights.matrices == tuple(Matrix(*shapes[name]) for name in products)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
def test_a_tokenizer_that_is_not_there_yet_counts(bundle: Path, tmp_path: Path) -> None:
    """Within a third of what a tokenizer of 18,278 tokens takes in a process, with what reads it."""
    tokenizers = pytest.importorskip("tokenizers")
    letters = [chr(ord("a") + number) for number in range(26)]
    pairs = list(itertools.product(letters, letters))
    merges = [*pairs, *(("".join(pair), letter) for pair in pairs for letter in letters)]
    tokens = [*letters, *map("".join, merges)]
    model = tokenizers.models.BPE({token: number for number, token in enumerate(tokens)}, merges)
    tokenizers.Tokenizer(model).save(str(tmp_path / "t.json"))
    code = (
        "import sys, numpy; from edgespec.runtime.memory.measure import return_freed_memory, usage; "
        "return_freed_memory(); before = usage().resident; import jinja2, tokenizers; found = tokenizers.Tokenizer.from_file(sys.argv[1]); "
        "return_freed_memory(); print(usage().resident - before)"
    )
    taken = subprocess.run([sys.executable, "-c", code, str(tmp_path / "t.json")], capture_output=True, text=True, check=True)
    manifest = open_bundle(bundle)
    manifest = dataclasses.replace(manifest, tokenizer=dataclasses.replace(manifest.tokenizer, vocab_size=len(tokens)))
    found, settings = Footprint(bundle, manifest, Part("held", 40_000_000, 10_000_000)), Settings(512, 128, 16)
    counted = found.with_tokenizer().plan(settings).peak - found.plan(settings).peak
    assert counted == pytest.approx(int(taken.stdout), rel=1 / 3)


def test_external_and_shared_weights_count_once(tmp_path: Path) -> None:
    """A head and an embedding at the same place of one file, in 4 bits and blocks of 32: numbers, scales and packed copy."""
    rows, columns, block = 64, 128, 32
    rng = np.random.default_rng(0)
    tensors = {
        "data": rng.integers(0, 255, (rows, columns // block, block // 2), dtype=np.uint8),
        "scales": rng.normal(size=(rows, columns // block)).astype(np.float32),
    }
    packed = [numpy_helper.from_array(array, name) for name, array in tensors.items()]
    twin = numpy_helper.from_array(tensors["data"], "table")
    nodes = [
        helper.make_node("GatherBlockQuantized", ["table", "ids", "scales"], ["x"], domain="com.microsoft"),
        helper.make_node(
            "MatMulNBits", ["x", "data", "scales"], ["y"], domain="com.microsoft", K=columns, N=rows, bits=4, block_size=block
        ),
    ]
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, [1])]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", 1, [1, rows])], [*packed, twin])
    model = helper.make_model(graph)
    onnx.external_data_helper.convert_model_to_external_data(model, location="w.bin", size_threshold=0)
    onnx.save(model, str(tmp_path / "g.onnx"))
    model = onnx.load(str(tmp_path / "g.onnx"), load_external_data=False)
    places = {tensor.name: tensor.external_data for tensor in model.graph.initializer}
    for entry, other in zip(places["table"], places["data"], strict=True):
        entry.value = other.value
    onnx.save(model, str(tmp_path / "g.onnx"))
    weights = read_weights(tmp_path / "g.onnx")
    data, blocks = rows * columns // 2, rows * columns // block
    assert (weights.inline, weights.kept, weights.table, weights.largest) == (0, 4 * blocks, data, data)
    assert weights.packed == data + 8 * blocks


@pytest.mark.parametrize("cut", [0, 1, 100, 1000, -1])
def test_a_damaged_graph_is_named(bundle: Path, tmp_path: Path, cut: int) -> None:
    path = tmp_path / "target.onnx"
    path.write_bytes((bundle / "target.onnx").read_bytes()[:cut])
    with pytest.raises(BundleError, match=re.escape(str(path))):
        read_weights(path)


def test_what_there_is_fits_without_a_budget(footprint: Footprint) -> None:
    plan = fit(footprint, footprint.widest(), None)
    assert plan.settings == Settings(context=4096, chunk=128, width=16, draft_window=4096, drafts=("draft",))
    assert plan.steps == ()
    assert plan.peak >= max(sum(part.total for part in plan.parts), 50_000_000)
    with pytest.raises(UsageError, match="5000 is more than the 4096"):
        footprint.widest(5000)


def test_every_budget_is_kept_and_in_order(footprint: Footprint) -> None:
    """200 random budgets. A step is taken only if all before it are taken as far as they go and it does not fit yet."""
    wanted = dataclasses.replace(footprint.widest(), kv=("float32", "int8"))
    smallest = wanted
    for step in ORDER:
        *_, smallest = itertools.chain([smallest], step.smaller(smallest))
    most, least = footprint.plan(wanted).ceiling, footprint.plan(smallest).ceiling
    assert fit(footprint, wanted, least).settings == smallest == Settings(LEAST_ROWS, chunk=32, width=4, kv=("int8",))
    taken = set()
    for budget in random.Random(0).sample(range(least, most), 200):
        plan = fit(footprint, wanted, budget)
        assert plan.ceiling <= budget
        smallest = wanted
        for step in ORDER:
            if getattr(plan.settings, step.fields[0]) != getattr(wanted, step.fields[0]):
                assert footprint.plan(smallest).ceiling > budget, f"{step.fields} was given up too early at {budget}: {plan.steps}"
                taken.add(step.fields[0])
            *_, smallest = itertools.chain([smallest], step.smaller(smallest))
        assert len(plan.steps) == len({field for field in FIELDS if getattr(plan.settings, field) != getattr(wanted, field)}) - (
            not plan.settings.drafts
        )
    assert taken == set(FIELDS)
    with pytest.raises(CapacityError):
        fit(footprint, wanted, least - 1)


def test_more_memory_never_gives_less(footprint: Footprint) -> None:
    wanted = footprint.widest()
    most = footprint.plan(wanted).ceiling
    least = footprint.plan(Settings(LEAST_ROWS, chunk=32, width=4)).ceiling
    contexts = [fit(footprint, wanted, budget).settings.context for budget in range(least, most, 50_000)]
    assert contexts == sorted(contexts)
    assert contexts[0] < contexts[-1]


def test_an_engine_within_its_budget_writes_the_same_text(bundle: Path) -> None:
    prompt = [7, 8, 9, 10] * 70
    with load(bundle) as engine:
        expected = engine.generate(prompt, max_new_tokens=60, drafter="none").token_ids
        full = engine.plan.settings
    free = plan_bundle(bundle)
    for missing in (0, 400_000, 1_500_000):
        plan = plan_bundle(bundle, memory_budget=free.ceiling - missing, context=2048)
        with load(bundle, memory_budget=free.ceiling - missing, context=2048) as engine:
            result = engine.generate(prompt, max_new_tokens=60, drafter="draft", draft_length=3)
            assert result.token_ids == expected
            assert result.stats.degraded == list(engine.plan.steps)
            assert result.stats.predicted_peak_bytes == engine.plan.peak
            assert dataclasses.replace(engine.settings, chunk=0, width=0) == dataclasses.replace(plan.settings, chunk=0, width=0)
    assert full.context == 4096


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    """Without room for the draft model, a generation that asks for it goes on without."""
    bundle = make_lookup_bundle(tmp_path / "b", draft_table=np.eye(259), vocab_size=259, capacity=512)
    least = plan_bundle(bundle, context=512)
    without = least.ceiling - 1_500_000
    with load(bundle, memory_budget=without) as engine:
        assert "draft" not in engine.drafters
        result = engine.generate("abc", drafter="draft", max_new_tokens=5)
        assert result.stats.speculation_off == "draft: no room in the memory budget"
        assert "without draft" in result.stats.degraded


def test_a_budget_that_is_too_small_names_the_one_that_works(bundle: Path) -> None:
    with pytest.raises(CapacityError, match="smallest that works") as refused:
        load(bundle, memory_budget="1MB")
    least = re.search(r"smallest that works is (\d+) MB", str(refused.value))
    assert least is not None
    with load(bundle, memory_budget=f"{int(least[1]) + 4} MB") as engine:  # the heap may have moved by a little
        assert engine.capacity >= LEAST_ROWS
        with pytest.raises(CapacityError, match="the cache holds"):
            engine.generate([1] * (engine.capacity + 1))


def test_usage_is_what_the_system_says() -> None:
    before = usage()
    assert 0 < before.private < before.resident <= before.peak
    assert before.private + before.evictable == before.resident
    block = np.ones(64 * 2**20, np.uint8)
    after = usage()
    assert after.private - before.private > 60 * 2**20
    assert after.peak >= before.resident + 60 * 2**20
    del block
