"""The npu profile on Qualcomm's HTP emulator, which comes in the package onnxruntime-qnn for Linux on x86-64.

It computes in 16-bit floats, as the chip does, so its logits are compared by their spread and texts only with its own.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from edgespec.errors import BundleError, UsageError
from edgespec.manifest import read_manifest
from edgespec.runtime import load
from edgespec.runtime.models.model import Model
from edgespec.runtime.providers.assignment import assignment
from edgespec.runtime.providers.compiling import compile_bundle
from edgespec.runtime.providers.placement import Placement, Placements
from edgespec.runtime.providers.profiles import open_model, static_spec
from edgespec.runtime.providers.session import make_session
from tests.export.conftest import export
from tests.export.test_families import IDS, Reference
from tests.helpers.checkpoints import CAPACITY, make_checkpoint
from tests.helpers.distances import relative_rms
from tests.helpers.speculation import assert_plain_text

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("onnxruntime_qnn") is None, reason="needs the package onnxruntime-qnn"),
]
HALF = 1e-2  # rms error of logits over their spread that 16-bit floats may cost
QNN = "QNNExecutionProvider"


def open_on_qnn(bundle: Path) -> Model:
    place = Placements.of("qnn", threads=1, strict=True).of_model("target")
    assert place.profile == "npu", "the provider chooses the profile"
    return open_model(bundle, static_spec(read_manifest(bundle).target, "npu", "target"), place, capacity=CAPACITY)


def maybe_on_qnn() -> Placement:
    """What QNN does not take may run on the CPU."""
    return Placements.of("qnn", threads=1).of_model("target")


def operators_by_provider(bundle: Path) -> dict[str, dict[str, int]]:
    """Where the nodes of a verification pass run when they may run elsewhere, too."""
    found = assignment(make_session(bundle / "target.npu.5.onnx", 1, maybe_on_qnn().providers))
    assert found is not None
    return found


def distance_from_the_cpu(bundle: Path) -> float:
    """Of logits of six verification passes."""
    spec, logits = static_spec(read_manifest(bundle).target, "npu", "target"), []
    for place in (maybe_on_qnn(), Placements.of(threads=1, profile="npu").of_model("target")):
        model = open_model(bundle, spec, place, capacity=CAPACITY)
        logits.append(np.concatenate([model.run(IDS[start : start + 5], range(5)).copy() for start in range(0, 30, 5)]))
    return relative_rms(*logits)


@pytest.fixture(scope="module", params=["llama", "qwen3", "gemma3_text"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("qnn") / "checkpoint", request.param)


@pytest.fixture(scope="module")
def bundle(checkpoint: Path) -> Path:
    return export(checkpoint, checkpoint.parent / "bundle", draft="layers:2", profiles=("npu",), npu_widths=(1, 5, 16)).output


def test_every_node_is_on_the_npu_and_logits_are_torchs(checkpoint: Path, bundle: Path) -> None:
    """Strict: the session would not come up with a node elsewhere. A prompt in chunks, a tree of which a branch is kept, one by one."""
    model, reference = open_on_qnn(bundle), Reference(checkpoint)
    wanted = reference(IDS[:40])
    assert relative_rms(model.run(IDS[:16], [0, 7, 15]), wanted[[0, 7, 15]]) < HALF
    assert relative_rms(model.run(IDS[16:20], range(4)), wanted[16:20]) < HALF
    tree = model.run([IDS[20], 7, IDS[21], IDS[22]], range(4), (-1, 0, 0, 2))
    assert relative_rms(tree[[0, 2, 3]], wanted[20:23]) < HALF
    assert relative_rms(tree[1], reference([*IDS[:21], 7])[-1]) < HALF
    model.keep_path(20, (0, 2, 3))
    for position in range(23, 26):
        assert relative_rms(model.run([IDS[position]], [0])[0], wanted[position]) < HALF


def test_speculation_on_the_npu_writes_its_plain_text(bundle: Path) -> None:
    with load(bundle, providers="qnn", strict_providers=True, threads=1) as engine:
        assert_plain_text(engine, [IDS[:20]], ("ngram", "draft"), [3])


def test_a_target_on_the_npu_with_a_draft_on_the_cpu(bundle: Path) -> None:
    with load(bundle, providers="target=qnn,draft=cpu", threads=1) as engine:
        assert_plain_text(engine, [IDS[:20]], ["draft"], [3])


def test_a_target_on_the_cpu_with_a_draft_on_the_npu(bundle: Path) -> None:
    with load(bundle, threads=1) as engine:
        plain = engine.generate(IDS[:20], drafter="none", max_new_tokens=20, ignore_eos=True)
    with load(bundle, providers="draft=qnn", threads=1) as engine:
        found = engine.generate(IDS[:20], drafter="draft", draft_length=3, max_new_tokens=20, ignore_eos=True)
    assert found.token_ids == plain.token_ids


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_quantised_products_are_on_the_npu(checkpoint: Path, tmp_path: Path, weights: str) -> None:
    """Only the look-up of embeddings is not: every node of the decoder's blocks is, over the same bytes as in the usual graph."""
    bundle = export(checkpoint, tmp_path / "bundle", weights=weights, max_kl=9.0, profiles=("npu",), npu_widths=(1, 5, 16)).output
    found = operators_by_provider(bundle)
    assert found.pop("CPUExecutionProvider") == {"GatherBlockQuantized": 1}
    assert found.keys() == {QNN}
    assert found[QNN]["MatMulNBits"] == 13
    assert distance_from_the_cpu(bundle) < 3e-2, "the CPU rounds activations to 8 bits, which the NPU does not"


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_whole_numbers_are_on_the_npu(checkpoint: Path, tmp_path: Path, weights: str) -> None:
    """All but what is in front and behind: the embedding, and from floats to whole numbers and back. They are what the CPU computes."""
    options = {"profiles": ("npu",), "npu_widths": (1, 5, 16), "npu_activations": "int16", "method": "search"}
    bundle = export(checkpoint, tmp_path / "bundle", weights=weights, max_kl=9.0, **options).output
    found = operators_by_provider(bundle)
    outside = found.pop("CPUExecutionProvider")
    assert outside.keys() == {"GatherBlockQuantized", "QuantizeLinear", "DequantizeLinear"}
    assert (outside["GatherBlockQuantized"], outside["DequantizeLinear"]) == (1, 1)
    assert outside["QuantizeLinear"] <= 1 + len({layer.window for layer in read_manifest(bundle).target.layers} | {None})
    assert found.keys() == {QNN}
    assert found[QNN]["MatMul"] == 13
    assert distance_from_the_cpu(bundle) < 3e-2, "the CPU's products round what they take to 8 bits"


def contexts(bundle: Path) -> tuple[str, ...]:
    profiles = read_manifest(bundle).target.profiles
    assert profiles is not None
    compiled = profiles["npu"].compiled
    assert compiled is not None
    assert compiled.provider == QNN
    return compiled.contexts


def test_compiled_graphs_write_the_same_text(bundle: Path, tmp_path: Path) -> None:
    compile_bundle(bundle, tmp_path / "compiled", "qnn", {}, shared=False)
    assert len(contexts(tmp_path / "compiled")) == 3
    texts = []
    for folder in (bundle, tmp_path / "compiled"):
        with load(folder, providers="qnn", strict_providers=True, threads=1) as engine:
            texts.append(engine.generate(IDS[:20], max_new_tokens=20, ignore_eos=True).token_ids)
    assert texts[0] == texts[1]
    with pytest.raises(BundleError, match="its npu graphs are compiled for qnn; run them with --providers qnn"):
        load(tmp_path / "compiled", profile="npu")
    load(tmp_path / "compiled", threads=1).close()  # the usual graphs are still there
    with pytest.raises(UsageError, match="is compiled already"):
        compile_bundle(tmp_path / "compiled", tmp_path / "again", "qnn", {})


def test_compiled_graphs_share_one_binary(bundle: Path, tmp_path: Path) -> None:
    """The emulator's compiler makes such a binary, and only a chip can load it."""
    for shared in (False, True):
        compile_bundle(bundle, tmp_path / str(shared), "qnn", {}, shared=shared)
    apart, together = contexts(tmp_path / "False"), contexts(tmp_path / "True")
    assert len(together) == 1
    sizes = [
        sum((folder / name).stat().st_size for name in names)
        for folder, names in ((tmp_path / "False", apart), (tmp_path / "True", together))
    ]
    assert sizes[1] < 0.6 * sizes[0]
    with pytest.raises(BundleError, match="the emulator cannot load graphs that share a binary"):
        load(tmp_path / "True", providers="qnn")
