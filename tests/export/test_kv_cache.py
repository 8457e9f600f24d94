"""Graphs over quantised KV caches: calibrated, measured with the caches that are used, and stated."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import edgespec
from edgespec.bundle import check_hashes, open_bundle
from edgespec.errors import ExportError, UsageError
from edgespec.export import ExportConfig, ExportReport
from edgespec.export.parity.limits import DIVERGENCE, require
from edgespec.export.pipeline import Prepared, prepare, write_bundle
from edgespec.manifest import Fidelity
from edgespec.runtime.models.kv import in_form
from edgespec.runtime.models.model import Model
from edgespec.runtime.models.rows import HOLD, STEP, hold_for
from edgespec.runtime.providers.session import DEFAULT_PROVIDERS
from tests.export.architectures import CASES
from tests.export.conftest import export
from tests.helpers.checkpoints import FAMILIES, make_checkpoint
from tests.helpers.onnxruntime import needs_quantised_kv

pytestmark = needs_quantised_kv
TEXT = np.random.default_rng(0).integers(0, 256, 60).tolist()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> ExportReport:
    """A decoder with windows on some layers, and its first layer as draft, over caches of all types."""
    folder = tmp_path_factory.mktemp("kv")
    settings = {**FAMILIES["gemma3_text"], "max_position_embeddings": 700}
    checkpoint = make_checkpoint(folder / "checkpoint", "gemma3_text", **settings)
    return export(checkpoint, folder / "bundle", weights="int8", draft="layers:1", kv=("float32", "int8", "int4"))


@pytest.fixture(scope="module")
def prepared(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """A decoder that is traced, for bundles of any kind."""
    return prepare(ExportConfig(str(llama), tmp_path_factory.mktemp("unused") / "x", weights="fp32", max_width=8, quiet=True))


def write(prepared: Prepared, output: Path, **options: Any) -> ExportReport:
    target = dataclasses.replace(prepared.target, proven={}, measured={})
    return write_bundle(dataclasses.replace(prepared, target=target, config=dataclasses.replace(prepared.config, **options)), output)


def test_each_form_is_a_graph_over_the_same_weights_and_is_measured(report: ExportReport) -> None:
    check_hashes(report.output, open_bundle(report.output))
    for name, spec in report.manifest.models.items():
        assert spec.kv_forms is not None
        assert list(spec.kv_forms) == ["int8", "int4"]
        assert spec.fidelity is not None
        errors = [spec.fidelity.relative_rms]
        for kv, form in spec.kv_forms.items():
            assert form.graph == f"{name}-{kv}-kv.onnx"
            assert form.fidelity is not None
            assert form.fidelity.graph_rms == spec.fidelity.graph_rms
            errors.append(form.fidelity.relative_rms)
        assert errors[0] < errors[2]
        assert errors[1] < errors[2] / 3
    assert sum(path.stat().st_size for path in report.output.glob("*.onnx")) < 2**20, "weights are not in them"


def test_scales_are_what_the_caches_hold(report: ExportReport) -> None:
    """A channel's scale is some more than 1/127 of its largest number: of other text next to nothing is cut off."""
    spec = report.manifest.target
    model = Model(report.output / spec.graph, spec, capacity=96, threads=1, providers=DEFAULT_PROVIDERS)
    model.run(TEXT, [0])
    graph = onnx.load(report.output / "target-int8-kv.onnx", load_external_data=False).graph
    scales = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer if tensor.name.startswith("kv_scale.")}
    assert len(scales) == 2 * len(spec.layers)
    for index, rows in enumerate(model.cache_rows(0, len(TEXT))):
        steps = np.abs(rows) / scales[f"kv_scale.{index // 2}.{'value' if index % 2 else 'key'}"]
        assert np.mean(steps > 127.5) < 0.01
        assert 60 < np.median(steps.max(2)) < 130


@pytest.mark.parametrize("kv", ["int8", "int4"])
def test_speculation_changes_nothing(report: ExportReport, kv: str) -> None:
    with edgespec.load(report.output, threads=1, kv=kv) as engine:
        assert engine.exactness.grade == "exact"
        assert 1 in engine.exactness.widths, "attention over a quantised cache takes one path for all widths"
        texts = [engine.generate("hello", drafter=drafter, max_new_tokens=60).token_ids for drafter in ("none", "ngram", "draft", "tree")]
    assert len(texts[0]) == 60
    assert all(text == texts[0] for text in texts)


@pytest.mark.parametrize("kv", ["float32", "int8"])
def test_windows_hold_few_rows_and_give_the_bits_of_all(report: ExportReport, kv: str) -> None:
    """Activations of 8 bits make a large difference of any. Texts many times the window, with a rollback in each pass."""
    spec = in_form(report.manifest.target, kv)
    assert hold_for(spec) == HOLD
    bounded, full = (
        Model(report.output / spec.graph, spec, capacity=700, threads=1, providers=DEFAULT_PROVIDERS, hold=hold) for hold in (HOLD, None)
    )
    for step in range(130):
        tokens = [(step * 7 + row * 13) % 256 for row in range(6)]
        assert np.array_equal(*(model.run(tokens, range(6), parents=[-1, 0, 1, 0, -1, 4]) for model in (bounded, full)))
        for model in (bounded, full):
            model.keep_path(5 * step, (0, 1, 2, 3, 5) if step % 3 == 0 else (0, 1, 2, 3, 4))
    assert bounded.length == full.length == 650
    assert bounded._gone[8] > 650 - 8 - HOLD - STEP
    with edgespec.load(report.output, threads=1, kv=kv) as engine:
        texts = [engine.generate("hello", drafter=drafter, max_new_tokens=450, ignore_eos=True).token_ids for drafter in ("none", "ngram")]
        assert engine._model("target")._gone[8] > 100
    assert texts[0] == texts[1]


def test_logits_stay_near_those_over_float_caches(report: ExportReport) -> None:
    found = {}
    for kv in ("float32", "int8", "int4"):
        spec = in_form(report.manifest.target, kv)
        model = Model(report.output / spec.graph, spec, capacity=96, threads=1, providers=DEFAULT_PROVIDERS)
        model.run(TEXT[:40], [0])
        model.keep(32)  # and over the window
        found[kv] = model.run(TEXT[32:], range(28)).copy()
    off = {kv: np.sqrt(np.square(found[kv] - found["float32"]).mean()) / found["float32"].std() for kv in ("int8", "int4")}
    assert 0 < off["int8"] < 0.05
    assert off["int8"] < off["int4"] < 0.5


def test_one_type_alone_is_the_bundles_own(prepared: Prepared, tmp_path: Path) -> None:
    bundle = write(prepared, tmp_path / "bundle", kv=("int8",)).output
    spec = open_bundle(bundle).target
    assert (spec.kv_dtype, spec.graph, spec.kv_forms) == ("int8", "target-int8-kv.onnx", None)
    assert [path.name for path in bundle.glob("*.onnx")] == [spec.graph]
    assert spec.fidelity is not None
    assert spec.fidelity.relative_rms > DIVERGENCE["fp32"].relative_rms, "measured with the cache that is used"
    with edgespec.load(bundle, threads=1) as engine:
        texts = [engine.generate("hello", drafter=drafter, max_new_tokens=40).token_ids for drafter in ("none", "ngram")]
    assert texts[0] == texts[1]


def test_onnx_runtimes_own_format_has_the_forms(prepared: Prepared, tmp_path: Path) -> None:
    bundle = write(prepared, tmp_path / "bundle", kv=("float32", "int8"), ort_format=True).output
    forms = open_bundle(bundle).target.kv_forms
    assert forms is not None
    assert forms["int8"].graph == "target-int8-kv.ort"
    with edgespec.load(bundle, threads=1, kv="int8") as engine:
        assert len(engine.generate("hello", max_new_tokens=10).token_ids) == 10


def test_the_gate_has_a_limit_for_each_type(prepared: Prepared, tmp_path: Path) -> None:
    fidelity = Fidelity(kl=0.01, top1=1.0, relative_rms=0.1, rows=1)
    with pytest.raises(ExportError, match="accepted for fp32;"):
        require("target", fidelity, "fp32", None)
    require("target", fidelity, "fp32", None, "int8")
    with pytest.raises(ExportError, match="accepted for int8 with a KV cache of int8;"):
        require("target", dataclasses.replace(fidelity, kl=0.06), "int8", None, "int8")
    with pytest.raises(ExportError, match=r"fp32 with a KV cache of int8.*--max-kl"):
        write(prepared, tmp_path / "bundle", kv=("float32", "int8"), max_kl=1e-8)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_is_refused_before_any_work(tmp_path: Path) -> None:
    for kv in ((), ("int3",), ("int8", "int8")):
        with pytest.raises(UsageError, match="--kv"):
            ExportConfig("x", tmp_path, kv=kv)
    with pytest.raises(UsageError, match="--profile npu have KV caches of their own"):
        ExportConfig("x", tmp_path, kv=("int8",), profiles=("npu",))
    case = next(case for case in CASES if case.architecture == "gemma4_text")
    checkpoint = make_checkpoint(tmp_path / "checkpoint", case.architecture, **case.settings)
    with pytest.raises(UsageError, match="layers of this model share KV"):
        export(checkpoint, tmp_path / "bundle", kv=("int8",))
