"""``edgespec doctor`` on this machine, whatever it has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgespec.runtime.providers import doctor, providers
from edgespec.runtime.providers.providers import KNOWN
from edgespec.runtime.providers.self_check import SelfCheck
from tests.cli.conftest import Run, assert_one_line_error
from tests.helpers.bundles import make_lookup_bundle


@pytest.fixture(autouse=True)
def only_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other providers are as if they were not installed: what they do here is for the machines that have them."""
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(providers.importlib.util, "find_spec", lambda _: None)


def test_the_text(edgespec: Run, tmp_path: Path) -> None:
    bundle = make_lookup_bundle(tmp_path / "b")
    outcome = edgespec("doctor", bundle)
    assert outcome.code == 0
    assert outcome.err == ""
    for part in ("machine ", "threads ", "ONNX Runtime  ", "telemetry     off", "  cpu (CPUExecutionProvider"):
        assert part in outcome.out
    assert "does not work" not in outcome.out
    assert "    target (cpu profile)  " in outcome.out
    assert "AzureExecutionProvider" not in outcome.out
    for missing in KNOWN[1:]:
        assert f"  {missing.short} " in outcome.out
        assert missing.get in outcome.out


def test_the_json(edgespec: Run) -> None:
    found = json.loads(edgespec("doctor", "--json").out)
    by_name = {item["name"]: item for item in found["providers"]}
    assert by_name["cpu"]["check"]["ms"] > 0
    assert by_name["cpu"]["check"]["models"] == []
    assert by_name["qnn"] == {
        "name": "qnn",
        "onnxruntime": "QNNExecutionProvider",
        "devices": [],
        "check": None,
        "get": "pip install onnxruntime-qnn",
    }
    assert found["threads"] >= 1


def test_a_provider_that_does_not_work_is_told_with_its_reason(edgespec: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "self_check", lambda name, _: SelfCheck(name, None, "no answer within 10 s"))
    assert "does not work: no answer within 10 s" in edgespec("doctor").out


def test_a_bundle_that_is_none(edgespec: Run, tmp_path: Path) -> None:
    assert_one_line_error(edgespec("doctor", tmp_path / "none"), "no such bundle")
    (tmp_path / "empty").mkdir()
    assert_one_line_error(edgespec("doctor", tmp_path / "empty"), "not a bundle")
