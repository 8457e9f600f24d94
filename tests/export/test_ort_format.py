"""Bundles in ONNX Runtime's own format: the same text, and a list of operators that is true."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from edgespec.bundle import open_bundle
from edgespec.errors import ExportError
from edgespec.export import ExportReport, ort_format
from edgespec.export.ort_format import CONFIG
from edgespec.runtime import load
from tests.export.conftest import export

PROMPT = np.random.default_rng(0).integers(0, 256, 20).tolist()


@pytest.fixture(scope="module")
def converted(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> ExportReport:
    """As the fixture ``pair``, in the other format and with the npu profile."""
    output = tmp_path_factory.mktemp("ort") / "bundle"
    return export(llama, output, draft="layers:1", weights="int8", ort_format=True, profiles=("npu",), npu_widths=(1, 5, 16))


def test_it_writes_the_same_text(converted: ExportReport, pair: ExportReport) -> None:
    texts = []
    for report in (pair, converted):
        with load(report.output, threads=1) as engine:
            texts.append([engine.generate(PROMPT, drafter=drafter, max_new_tokens=30).token_ids for drafter in ("none", "draft")])
    assert texts[0] == texts[1]
    assert texts[0][0] == texts[0][1]
    with load(converted.output, profile="npu", threads=1) as engine:
        assert len(engine.generate(PROMPT, max_new_tokens=10, ignore_eos=True).token_ids) == 10


def test_graphs_hold_everything(converted: ExportReport) -> None:
    files = {path.name for path in converted.output.iterdir()}
    assert {"target.ort", "draft.ort", "target.npu.1.ort", "target.npu.16.ort", CONFIG} <= files
    assert not [name for name in files if name.endswith((".onnx", ".bin"))]
    assert open_bundle(converted.output).target.weights == ()


def test_a_budget_can_be_planned_with(converted: ExportReport) -> None:
    with load(converted.output, threads=1, memory_budget="2GB") as engine:
        assert engine.generate(PROMPT, max_new_tokens=5).token_ids


def test_the_list_has_all_operators_with_their_types(converted: ExportReport) -> None:
    text = (converted.output / CONFIG).read_text(encoding="utf-8")
    assert str(converted.output.parent) not in text
    operators: dict[str, object] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            assert re.fullmatch(r"# (Generated from model/s:|- [a-z0-9.]+\.ort)", line)
            continue
        domain, opset, names = line.split(";", 2)
        assert domain in ("ai.onnx", "com.microsoft")
        assert int(opset) > 0
        for name, types in re.findall(r"(\w+)(\{.*?\}\})?(?:,|$)", names):
            operators[name] = json.loads(types) if types else None
    assert {
        "GroupQueryAttention",
        "MatMulNBits",
        "GatherBlockQuantized",
        "Attention",
        "RotaryEmbedding",
        "RMSNormalization",
    } <= operators.keys()
    assert operators["Gather"] == {"inputs": {"0": ["float"], "1": ["int64_t"]}}


def test_what_does_not_fit_the_format(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort_format, "LIMIT", 1000)
    with pytest.raises(ExportError, match="--ort-format: a graph with its weights can have 2 GB at most"):
        export(llama, tmp_path / "b", ort_format=True)
    assert not (tmp_path / "b").exists()
