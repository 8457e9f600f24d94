"""Graphs of fixed shapes that compute with whole numbers: signed weights, 16-bit activations, and a cache of these.

They run on the CPU here; tests/export/test_qnn.py runs them on the emulator of an NPU.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from onnx import helper, numpy_helper

from edgespec.errors import BundleError, UnsupportedModelError, UsageError
from edgespec.export import ExportReport
from edgespec.export.passes.quantise_activations import QuantiseActivations, Seen
from edgespec.export.quantise import dequantise, quantise
from edgespec.export.quantise.qdq import LEVELS, signed_parts, whole_parts, whole_range
from edgespec.export.recipe import Scheme
from edgespec.manifest import parse_manifest
from edgespec.runtime import load
from edgespec.runtime.models.model import Model
from edgespec.runtime.models.rows import HALF_MASKED
from tests.export.conftest import export
from tests.export.test_families import IDS
from tests.export.test_static_profile import open_static
from tests.helpers.checkpoints import make_checkpoint
from tests.helpers.distances import relative_rms
from tests.helpers.graphs import operators, places

WIDTHS = (1, 8, 16)
INT8_WEIGHTS = 0.03  # of the logits' spread: two roundings of the same weights are that far apart
ACTIVATIONS = 0.005  # what 16 bits add


def everything(model: Model) -> np.ndarray:
    """Logits of a prompt in chunks, a tree of which the second branch is kept, a chain and single tokens behind a rollback."""
    model.keep(0)
    found = [model.run(IDS[:20], [19]).copy()]
    found.append(model.run([IDS[20], 7, IDS[21], IDS[22]], range(4), (-1, 0, 0, 2)).copy())
    model.keep_path(20, (0, 2, 3))
    found.append(model.run(IDS[23:30], range(7)).copy())
    model.keep(25)
    found += [model.run([token], [0]).copy() for token in IDS[40:43]]
    return np.concatenate(found)


@pytest.fixture(scope="module", params=["llama", "qwen3", "gemma3_text"])
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ExportReport:
    folder = tmp_path_factory.mktemp("integer")
    checkpoint = make_checkpoint(folder / "checkpoint", request.param)
    options = {"profiles": ("npu",), "npu_widths": WIDTHS, "npu_activations": "int16"}
    return export(checkpoint, folder / "bundle", draft="layers:2", weights="int8", **options)


@pytest.fixture(scope="module")
def bundle(report: ExportReport) -> Path:
    return report.output


def test_logits_are_those_of_the_usual_graph(bundle: Path) -> None:
    assert relative_rms(everything(open_static(bundle)), everything(open_static(bundle, usual=True))) < INT8_WEIGHTS


def test_sixteen_bits_cost_next_to_nothing(bundle: Path, tmp_path: Path) -> None:
    """Against the same graph without the rounding of activations, over the same signed weights."""
    model = onnx.load(bundle / "target.npu.8.onnx")
    sources = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    backs = [node for node in model.graph.node if node.op_type == "DequantizeLinear" and node.input[0] in sources]
    floats = {node.output[0]: sources[node.input[0]] for node in backs}
    assert len(floats) > 60
    unfused = ort.SessionOptions()
    unfused.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # fused products round activations to 8 bits
    logits = []
    for path in (tmp_path / "whole.onnx", tmp_path / "float.onnx"):
        onnx.save(model, path)
        session = ort.InferenceSession(str(path), unfused, providers=["CPUExecutionProvider"])
        logits.append(session.run(["logits"], first_pass(session))[0])
        for node in model.graph.node:
            for index, name in enumerate(node.input):
                node.input[index] = floats.get(name, name)
        logits_from = next(node for node in backs if node.output[0] == "logits")
        logits_from.op_type = "Identity"
        logits_from.input[:] = [floats["logits"]]
    assert 0 < relative_rms(*logits) < ACTIVATIONS


def first_pass(session: Any) -> dict[str, np.ndarray]:
    """Inputs for the first tokens of a text: of the cache nothing is seen."""
    types = {"tensor(int64)": np.int64, "tensor(float)": np.float32, "tensor(uint16)": np.uint16}
    feeds = {value.name: np.zeros(value.shape, types[value.type]) for value in session.get_inputs()}
    width = feeds["input_ids"].shape[1]
    feeds["input_ids"][0] = IDS[:width]
    feeds["position_ids"][0] = feeds["logit_rows"][:] = np.arange(width)
    for name, bias in feeds.items():
        if name.startswith("attention_bias"):
            bias[:] = HALF_MASKED
            bias[0, 0, :, -width:][np.tri(width, dtype=bool)] = 0
    return feeds


def test_everything_between_ids_and_logits_is_in_whole_numbers(bundle: Path) -> None:
    graph = onnx.load(bundle / "target.npu.8.onnx", load_external_data=False).graph
    whole = {tensor.name for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.INT64}
    backs = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    ids = {"input_ids", "position_ids", "logit_rows"}
    for node in graph.node:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear", "GatherBlockQuantized"):
            assert {*node.input} - {""} <= backs | ids | whole, node.op_type
    types = {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}
    caches = {name for name in types if name.startswith(("past_key_values", "present"))}
    assert len(caches) == 4 * 3
    assert {types[name] for name in caches} == {onnx.TensorProto.UINT16}
    assert types["logits"] == onnx.TensorProto.FLOAT


def test_graphs_share_weights_and_scales(report: ExportReport, bundle: Path) -> None:
    shared = [places(path) for path in sorted(bundle.glob("target.npu.*.onnx"))]
    assert len(shared) == 3
    assert shared[0] == shared[1] == shared[2]
    caches = []
    for path in sorted(bundle.glob("target.npu.*.onnx")):
        nodes = onnx.load(path, load_external_data=False).graph.node
        past = {node.input[0].removeprefix("past_key_values."): list(node.input[1:]) for node in nodes if "past_key" in node.input[0]}
        new = {
            node.output[0].removeprefix("present."): list(node.input[1:])
            for node in nodes
            if node.op_type == "QuantizeLinear" and "present." in node.output[0]
        }
        assert past == new, "a row means the same when it comes back; constants are named by their values"
        caches.append(past)
    assert caches[0] == caches[1] == caches[2]
    profiles = report.manifest.target.profiles
    assert profiles is not None
    assert profiles["npu"].kv_dtype == "uint16"


def test_drafts_are_verified(bundle: Path) -> None:
    """A draft is right about as often as on the usual graphs. Texts may part at near-ties, which the grade says."""
    shares = []
    for profile in ("npu", "cpu"):
        with load(bundle, profile=profile, threads=1) as engine:
            stats = engine.generate(IDS[:40], drafter="draft", draft_length=4, max_new_tokens=40, ignore_eos=True).stats
            shares.append(stats.acceptance_rate)
            assert (stats.exactness == "fast") == (profile == "npu")
    assert shares[0] == pytest.approx(shares[1], abs=0.25)


@pytest.mark.parametrize("method", ["search", pytest.param("gptq", marks=pytest.mark.slow)])
def test_four_bits(tmp_path: Path, method: str) -> None:
    """In blocks of 32; the draft is the model itself."""
    checkpoint = make_checkpoint(tmp_path / "checkpoint", "qwen3")
    options = {"profiles": ("npu",), "npu_widths": WIDTHS, "npu_activations": "int16", "max_kl": 9.0, "method": method}
    bundle = export(checkpoint, tmp_path / "bundle", draft=str(checkpoint), weights="int4", **options).output
    assert operators(bundle / "target.npu.8.onnx")["MatMul"] == 13
    alone = export(checkpoint, tmp_path / "alone", weights="int4", max_kl=9.0, method=method).output
    assert (bundle / "target.onnx").read_bytes() == (alone / "target.onnx").read_bytes(), (
        "other weights come behind those of the usual graph"
    )
    assert relative_rms(everything(open_static(bundle)), everything(open_static(bundle, usual=True))) < 0.5
    with load(bundle, profile="npu", threads=1) as engine:
        stats = engine.generate(IDS[:40], drafter="draft", draft_length=4, max_new_tokens=40, ignore_eos=True).stats
    assert stats.acceptance_rate > 0.9


def test_massive_activations_stay_float() -> None:
    """A number thousands of times as large as the others, as real models have: one scale would leave nothing of these."""
    nodes = [
        helper.make_node("Add", ["x", "more"], ["sum"]),
        helper.make_node("Mul", ["sum", "gain"], ["loud"]),
        helper.make_node("RMSNormalization", ["loud", "weight"], ["even"], axis=-1),
        helper.make_node("Sigmoid", ["even"], ["y"]),
    ]
    rng = np.random.default_rng(0)
    constants = {"gain": np.float32(3.0), "weight": rng.normal(size=8).astype(np.float32), "more": rng.normal(size=8).astype(np.float32)}
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4, 8]) for name in ("x", "y")]
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    ordinary, massive = Seen(-9.0, 9.0, 2.0), Seen(-9.0, 90_000.0, 3.0)
    x = rng.normal(size=(4, 8)).astype(np.float32)
    wanted, found = run(proto, x), []
    for loud in (ordinary, massive):
        model = ir.from_proto(proto)
        QuantiseActivations({"sum": loud, "loud": loud, "even": ordinary, "y": Seen(0.0, 1.0, 0.5)})(model)
        rounded = {node.inputs[0].name for node in model.graph if node.op_type == "QuantizeLinear" and node.inputs[0] is not None}
        assert rounded == ({"even", "y.float"} if loud is massive else {"sum", "loud", "even", "y.float"})
        back = {node.outputs[0] for node in model.graph if node.op_type == "DequantizeLinear"}
        scaled = next(node for node in model.graph if node.op_type == "Mul")
        assert (scaled.inputs[1] in back) == (loud is ordinary), "what meets floats only stays float, too"
        found.append(run(ir.to_proto(model), x))
    np.testing.assert_allclose(found[0], wanted, atol=3e-4)
    np.testing.assert_allclose(found[1], wanted, atol=3e-4)


def run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    result: np.ndarray = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    return result


@pytest.mark.parametrize("bits", [4, 8])
def test_signed_weights_are_read_as_onnx_reads_them(bits: int) -> None:
    w = torch.randn(24, 100, generator=torch.Generator().manual_seed(bits))
    scheme = Scheme(bits, 32, signed=True)
    quantised = quantise(w, scheme)
    assert (dequantise(quantised) - w).pow(2).mean() < (0.01 if bits == 4 else 1e-4)
    parts = signed_parts(quantised)
    if bits == 4:
        tensor = onnx.TensorProto(data_type=onnx.TensorProto.INT4, dims=[100, 24], raw_data=parts["data"].tobytes())
        numbers = numpy_helper.to_array(tensor).astype(np.float32)
    else:
        numbers = parts["data"].astype(np.float32)
    assert numbers.min() >= -(2 ** (bits - 1))
    np.testing.assert_allclose(numbers * parts["scales"].repeat(32, 0)[:100], dequantise(quantised).numpy().T, atol=1e-6)


def test_a_whole_tensor_covers_its_range_and_nought() -> None:
    tensor = np.array([0.5, 3.0, 2.0], np.float32)
    parts = whole_parts(tensor, low=-1.0)
    values = (parts["data"].astype(np.float64) - int(parts["zero_points"])) * float(parts["scales"])
    np.testing.assert_allclose(values, tensor, atol=4.0 / LEVELS)
    assert whole_range(-1.0, 3.0)[1] == round(LEVELS / 4)
    assert whole_range(1.0, 3.0)[1] == 0


def test_what_has_no_such_form_is_refused(tmp_path: Path, llama: Path) -> None:
    for options, message in (
        ({"weights": "int8"}, "is for the graphs of --profile npu, which is missing"),
        ({"weights": "fp32", "profiles": ("npu",)}, "needs weights of int8, int4 or mixed, which fp32 are not"),
        ({"weights": "int8", "draft_weights": "fp32", "profiles": ("npu",)}, "which fp32 are not"),
    ):
        with pytest.raises(UsageError, match=f"--npu-activations int16: .*{message}"):
            export(llama, tmp_path / "bundle", npu_activations="int16", **options)
    with pytest.raises(UsageError, match="--npu-activations: 'int8' is unknown; choose one of float, int16"):
        export(llama, tmp_path / "bundle", npu_activations="int8")
    experts = make_checkpoint(tmp_path / "experts", "qwen3_moe")
    with pytest.raises(UnsupportedModelError, match="--npu-activations int16: a mixture of experts"):
        export(experts, tmp_path / "bundle", weights="int8", profiles=("npu",), npu_widths=WIDTHS, npu_activations="int16")
    assert not (tmp_path / "bundle").exists()


def test_a_manifest_with_another_type_of_cache(report: ExportReport) -> None:
    target = report.manifest.target
    assert target.profiles is not None
    profile = dataclasses.replace(target.profiles["npu"], kv_dtype="int3")
    models = {**report.manifest.models, "target": dataclasses.replace(target, profiles={"npu": profile})}
    with pytest.raises(BundleError, match=r"kv_dtype: .int3. is not float32 or uint16"):
        parse_manifest(dataclasses.replace(report.manifest, models=models).to_json())
