"""The export's proof: a graph with a mistake is refused however coarse its weights are, and a distance is what it says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from edgespec.cli.inspect import quantisation_text
from edgespec.errors import ExportError
from edgespec.export import ExportConfig, parity, pipeline
from edgespec.export.passes import Pipeline
from edgespec.export.passes.base import GraphPass
from tests.export.architectures import CASES
from tests.export.conftest import export
from tests.helpers.checkpoints import make_checkpoint

Mistake = Callable[[ir.Graph], None]


def nodes(graph: ir.Graph, op: str) -> list[ir.Node]:
    return [node for node in graph if node.op_type == op]


def swap_layers(graph: ir.Graph) -> None:
    """The MLPs of two layers read each other's matrix."""
    products = [node for node in nodes(graph, "MatMulNBits") if "down_proj" in (node.inputs[1].name or "")]
    first, second = products[:2]
    for position in (1, 2, 3):
        one, other = first.inputs[position], second.inputs[position]
        first.replace_input_with(position, other)
        second.replace_input_with(position, one)


def shift_zero_points(graph: ir.Graph) -> None:
    """One product without its zero points."""
    nodes(graph, "MatMulNBits")[1].replace_input_with(3, None)


def change_epsilon(graph: ir.Graph) -> None:
    """1e-4 where the configuration says 1e-6 or 1e-5: hardly to be seen in the logits."""
    for node in nodes(graph, "SimplifiedLayerNormalization"):
        node.attributes["epsilon"] = ir.AttrFloat32("epsilon", 1e-4)


def scale_attention(graph: ir.Graph) -> None:
    """Attention 2 % too sharp in the last layer."""
    node = nodes(graph, "GroupQueryAttention")[-1]
    scale = node.attributes["scale"].as_float() if "scale" in node.attributes else 16**-0.5
    node.attributes["scale"] = ir.AttrFloat32("scale", scale * 1.02)


class Spoil(GraphPass):
    def __init__(self, mistake: Mistake) -> None:
        super().__init__()
        self.mistake = mistake

    def edit(self, graph: ir.Graph) -> bool:
        self.mistake(graph)
        return True


@pytest.fixture(scope="module")
def prepared(llama: Path) -> dict[str, pipeline.Prepared]:
    """The checkpoint, traced once for each type of weights."""
    configs = {kind: ExportConfig(str(llama), Path(), weights=kind, method="rtn", quiet=True) for kind in ("int4", "int8")}
    return {kind: pipeline.prepare(config) for kind, config in configs.items()}


@pytest.mark.parametrize("mistake", [swap_layers, shift_zero_points, change_epsilon, scale_attention])
@pytest.mark.parametrize("weights", ["int4", "int8"])
def test_a_mistake_in_the_graph_is_refused(
    mistake: Mistake, weights: str, prepared: dict[str, pipeline.Prepared], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = pipeline.pipeline
    monkeypatch.setattr(pipeline, "pipeline", lambda *options: Pipeline(original(*options), Spoil(mistake)))
    with pytest.raises(ExportError, match="does not compute what the original does"):
        pipeline.write_bundle(prepared[weights], tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("architecture", "weights"),
    [
        ("gemma4_text", "int4"),
        ("gpt2", "int4"),
        ("qwen3_moe", "int8"),
        pytest.param("gemma3_text", "int4", marks=pytest.mark.slow),
        pytest.param("gpt2", "int8", marks=pytest.mark.slow),
        pytest.param("gpt_oss", "int4", marks=pytest.mark.slow),
    ],
)
def test_a_graph_without_mistakes_is_equal_to_the_last_digits(architecture: str, weights: str, tmp_path: Path) -> None:
    """Offsets in norms, transposed matrices, and experts that are stored in another layout: all are read back as the original's.

    With experts of 8 bits there is no float arithmetic to be had from the kernel.
    """
    case = next(case for case in CASES if case.architecture == architecture)
    checkpoint = make_checkpoint(tmp_path / "checkpoint", architecture, **case.settings)
    report = export(checkpoint, tmp_path / "bundle", weights=weights, method="rtn")
    fidelity = report.manifest.target.fidelity
    assert fidelity is not None
    assert fidelity.graph_rms is not None
    assert fidelity.rounding_kl is not None
    assert fidelity.graph_rms < (1e-2 if (architecture, weights) == ("qwen3_moe", "int8") else 1e-5)
    assert fidelity.rounding_kl < 1e-2
    assert {path.name for path in report.output.glob("*.onnx")} == {"target.onnx"}


def test_graphs_round_activations_when_they_are_used(llama: Path, tmp_path: Path) -> None:
    """The float arithmetic is the proof's alone."""
    report = export(llama, tmp_path / "bundle", weights="int4", method="rtn")
    graph = onnx.load(report.output / "target.onnx", load_external_data=False).graph
    levels = [attribute.i for node in graph.node for attribute in node.attribute if attribute.name == "accuracy_level"]
    assert levels
    assert set(levels) == {4}


@pytest.mark.parametrize(("weights", "method"), [("int4", "gptq"), ("int4", "rtn"), ("int8", "search")])
def test_symmetric_weights_are_right_without_zero_points(weights: str, method: str, llama: Path, tmp_path: Path) -> None:
    """Products and the tied embedding take the middle for zero, and nothing of zero points is stored."""
    plain = export(llama, tmp_path / "plain", weights=weights, method=method)
    report = export(llama, tmp_path / "bundle", draft="layers:1", weights=weights, method=method, symmetric=True)
    for model in report.manifest.models.values():
        assert model.quantisation.symmetric
        assert model.fidelity is not None
        assert model.fidelity.graph_rms is not None
        assert model.fidelity.graph_rms < 1e-5
    graph = onnx.load(report.output / "target.onnx", load_external_data=False).graph
    assert {len(node.input) for node in graph.node if node.op_type in ("MatMulNBits", "GatherBlockQuantized")} == {3}
    assert not any("zero_points" in tensor.name for tensor in graph.initializer)
    assert report.sizes["weights.bin"] < plain.sizes["weights.bin"]
    assert "symmetric" in quantisation_text(report.manifest.target.quantisation)


def test_distances_are_what_they_are_by_hand() -> None:
    """Two rows of three logits, of which the second has another top token; a shift of a row counts nothing."""
    wanted = np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 1.0]], np.float32)
    found = np.array([[6.0, 7.0, 8.0], [1.0, 0.0, 0.0]], np.float32)
    p = np.array([1, 1, np.e]) / (2 + np.e)
    q = p[::-1]
    fidelity = parity.compare(wanted, found, np.array([2]))
    assert fidelity.kl == pytest.approx((p * np.log(p / q)).sum() / 2, rel=1e-5)
    assert (fidelity.top1, fidelity.rows) == (0.5, 2)
    assert fidelity.relative_rms == pytest.approx(np.sqrt((2 / 3) / 2) / wanted.std(-1).mean(), rel=1e-5)
    assert fidelity.perplexity == fidelity.original_perplexity == pytest.approx(np.exp(-3) * np.exp([1, 2, 3]).sum(), rel=1e-5)
