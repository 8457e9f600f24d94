"""Mixture-of-experts layers: gates told by value, one operator in float and in blocks, and the exact way round for other gates."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import CONFIG_MAPPING
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

from edgespec.export.standins.experts import Gate, dense_experts, find_gate
from edgespec.export.trace.model import build_empty
from tests.export.conftest import export
from tests.export.test_families import TOLERANCE, Reference, load, sequence_distances
from tests.helpers.checkpoints import make_checkpoint, make_config
from tests.helpers.graphs import operators

EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}


def test_gates_are_told_by_value() -> None:
    assert find_gate(MixtralExperts(CONFIG_MAPPING["mixtral"](**EXPERTS, hidden_size=8, intermediate_size=8))) == Gate(False, 1.0, 0.0, 0.0)
    config = CONFIG_MAPPING["gpt_oss"](**EXPERTS, hidden_size=8, intermediate_size=8)
    assert find_gate(GptOssExperts(config)) == Gate(True, config.swiglu_alpha, 1.0, config.swiglu_limit)
    other = CONFIG_MAPPING["mixtral"](**EXPERTS, hidden_size=8, intermediate_size=8, hidden_act="gelu")
    assert find_gate(MixtralExperts(other)) is None


def test_another_gate_is_exact_and_says_what_it_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dense_experts(build_empty(make_config("mixtral", **EXPERTS))) == []
    checkpoint = make_checkpoint(tmp_path / "checkpoint", "mixtral", **EXPERTS, hidden_act="gelu")
    monkeypatch.setenv("COLUMNS", "200")
    export(checkpoint, tmp_path / "bundle", quiet=False)
    assert "model.layers.0.mlp.experts: ONNX Runtime has no operator for experts with this gate; all 4 are" in capsys.readouterr().err
    for name, difference in sequence_distances(load(tmp_path / "bundle"), Reference(checkpoint)).items():
        assert difference < TOLERANCE, name
    assert not operators(tmp_path / "bundle" / "target.onnx")["MoE"]


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_experts_are_quantised_like_other_matrices(weights: str, tmp_path: Path) -> None:
    # All experts are used: a router that chooses near a tie would choose others, which says nothing of the matrices.
    checkpoint = make_checkpoint(tmp_path / "checkpoint", "gpt_oss", num_local_experts=4, num_experts_per_tok=4)
    report = export(checkpoint, tmp_path / "bundle", weights=weights)  # its own proof has the limits for these weights
    assert operators(tmp_path / "bundle" / "target.onnx")["QMoE"] == 3
    assert report.manifest.target.fidelity is not None
    assert report.manifest.target.fidelity.relative_rms < {"int8": 0.04, "int4": 0.3}[weights]


def test_rows_that_no_block_fills_stay_float(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint", "mixtral", **EXPERTS, intermediate_size=40)
    export(checkpoint, tmp_path / "bundle", weights="int8")
    assert operators(tmp_path / "bundle" / "target.onnx")["MoE"] == 3
