"""The self-check: what works, what computes nonsense, what hangs, and the process that keeps the last apart."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgespec.runtime.providers import doctor, self_check
from edgespec.runtime.providers.self_check import GRAPH, ModelCheck, SelfCheck, check


def test_the_graph_is_what_its_comment_says() -> None:
    value = helper.make_tensor_value_info
    inputs = [value("a", TensorProto.FLOAT, [1, 8, 16]), value("b", TensorProto.FLOAT, [1, 16, 8])]
    nodes = [helper.make_node("MatMul", ["a", "b"], ["c"]), helper.make_node("Softmax", ["c"], ["d"], axis=-1)]
    graph = helper.make_graph(nodes, "check", inputs, [value("d", TensorProto.FLOAT, [1, 8, 8])])
    assert onnx.load_from_string(GRAPH).graph.SerializeToString() == graph.SerializeToString()


def test_models_of_a_bundle_are_tried(attention_bundle: Path) -> None:
    found = self_check.self_check("cpu", attention_bundle, limit_s=60)
    assert found.ms is not None
    assert [(model.model, model.profile, model.note) for model in found.models] == [("target", "cpu", None), ("draft", "cpu", None)]
    assert all(model.ms is not None and model.ms > 0 for model in found.models)


def test_wrong_numbers_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_check, "TOLERANCE", 0.0)
    monkeypatch.setattr(np, "abs", lambda array: np.maximum(array, 0.5))
    assert "it computes something else: softmax(a b) is off by 0.5" in (check("cpu").error or "")


def test_a_provider_that_takes_nothing_does_not_work() -> None:
    found = check("AzureExecutionProvider")
    assert found.ms is None
    assert "AzureExecutionProvider" in (found.error or "")


def test_a_provider_that_hangs_is_given_up(attention_bundle: Path) -> None:
    assert self_check.self_check("cpu", attention_bundle, limit_s=0.01) == SelfCheck("cpu", None, "no answer within 0.01 s")


@pytest.mark.parametrize(
    ("ending", "note"),
    [("import time; time.sleep(60)", "no answer within 8 s"), ("import os; os._exit(3)", "its process ended with code 3")],
)
def test_what_was_found_before_a_crash_is_kept(
    attention_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, note: str
) -> None:
    """A stand-in for the interpreter whose check of the second model ends badly."""
    program = (
        "import sys; from edgespec.runtime.providers import self_check; tried = []; real = self_check._model\n"
        "def model(bundle, manifest, name, place):\n"
        f"    if name == 'draft': {ending}\n"
        "    return real(bundle, manifest, name, place)\n"
        "self_check._model = model; self_check.main(sys.argv[3:])\n"
    )
    script = tmp_path / "program.py"
    script.write_text(program, encoding="utf-8")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    found = self_check.self_check("cpu", attention_bundle, limit_s=8)
    assert found.ms is not None
    assert found.models[0].ms is not None
    assert found.models[1] == ModelCheck("draft", "cpu", None, note)


def test_without_processes_the_check_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    assert self_check.self_check("cpu").ms is not None


def test_telemetry_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, said in (("1", "off (ORT_DISABLE_TELEMETRY=1)"), ("0", "on (ORT_DISABLE_TELEMETRY='0')")):
        monkeypatch.setenv("ORT_DISABLE_TELEMETRY", value)
        assert doctor._telemetry() == said
