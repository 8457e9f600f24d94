"""Block quantisation: what the kernels multiply by is what we think they do, and the search is worth its time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgespec.export.passes.lower_weights import LowerWeights
from edgespec.export.quantise import dequantise, gptq, join, quantise
from edgespec.export.quantise.blockwise import pack, unpack
from edgespec.export.quantise.gptq import inverse_factor
from edgespec.export.recipe import Plan, Recipe, Scheme, get_recipe, weight
from edgespec.export.trace import dialect

SCHEMES = [Scheme(bits, block, symmetric) for symmetric in (False, True) for bits in (4, 8) for block in (16, 32, 128)]


def matrix(rows: int = 48, columns: int = 288) -> torch.Tensor:
    """288 columns do not fill blocks of 128, so the last block has padding."""
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))


@given(st.lists(st.integers(0, 15), min_size=1, max_size=33))
def test_packing_is_reversible(codes: list[int]) -> None:
    row = torch.tensor(codes, dtype=torch.uint8)
    assert unpack(pack(row, 4), 4)[: len(codes)].tolist() == codes


def plain_rounding(w: torch.Tensor, scheme: Scheme) -> torch.Tensor:
    """Asymmetric rounding over the full range, the usual baseline."""
    blocks = w.unflatten(1, (-1, scheme.block))
    low, high = blocks.amin(-1, keepdim=True).clamp(max=0), blocks.amax(-1, keepdim=True).clamp(min=0)
    levels = 2**scheme.bits - 1
    scale = (high - low) / levels
    zero = torch.round(-low / scale)
    return ((torch.round(blocks / scale + zero).clamp(0, levels) - zero) * scale).flatten(1)


@pytest.mark.parametrize("block", [16, 32, 96])
def test_the_search_beats_plain_rounding_at_four_bits(block: int) -> None:
    w, scheme = matrix(), Scheme(4, block)
    searched, plain = (((approximation - w) ** 2).mean() for approximation in (dequantise(quantise(w, scheme)), plain_rounding(w, scheme)))
    assert searched < 0.95 * plain


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_error_is_within_half_a_step(scheme: Scheme) -> None:
    w = matrix()
    error = (dequantise(quantise(w, scheme)) - w).abs().max()
    step = (w.max() - w.min()) / (2**scheme.bits - 1)
    assert error < (2.0 if scheme.bits == 4 else 1.0) * step


def test_constant_and_zero_blocks_are_exact() -> None:
    w = torch.cat([torch.zeros(4, 64), torch.full((4, 64), 0.5), torch.full((4, 64), -3.0)])
    assert torch.allclose(dequantise(quantise(w, Scheme(4, 32))), w, atol=1e-6)


def correlated_inputs(columns: int, samples: int = 2000) -> torch.Tensor:
    """Inputs as in a network: few directions carry most of the power."""
    generator = torch.Generator().manual_seed(1)
    mixing = torch.randn(columns, columns, generator=generator) * torch.logspace(0, -1.5, columns)[:, None]
    return torch.randn(samples, columns, generator=generator) @ mixing


@pytest.mark.parametrize("scheme", [Scheme(4, 32), Scheme(4, 128), Scheme(4, 32, symmetric=True), Scheme(4, 32, signed=True)])
def test_gptq_halves_the_output_error_of_the_search(scheme: Scheme) -> None:
    w = matrix()
    x = correlated_inputs(w.shape[1])
    found = [dequantise(q) for q in (gptq(w, scheme, inverse_factor(x.T @ x)), quantise(w, scheme))]
    errors = [((x @ (approximation - w).T) ** 2).mean() for approximation in found]
    assert errors[0] < 0.5 * errors[1]


def test_gptq_on_inputs_that_say_nothing_rounds() -> None:
    """No input, or one direction only: finite, and no worse than a step from the weights."""
    w, scheme = matrix(), Scheme(4, 32)
    step = (w.max() - w.min()) / 15
    for hessian in (torch.zeros(288, 288), torch.ones(288, 288)):
        approximation = dequantise(gptq(w, scheme, inverse_factor(hessian)))
        assert torch.isfinite(approximation).all()
        assert (approximation - w).abs().mean() < step


def test_rows_can_be_quantised_apart_and_joined() -> None:
    w, scheme = matrix(), Scheme(4, 32)
    whole, parts = quantise(w, scheme), join([quantise(w[:16], scheme), quantise(w[16:], scheme)])
    assert torch.equal(dequantise(whole), dequantise(parts))


def test_search_beats_rtn_and_a_plan_has_exceptions() -> None:
    w, scheme = matrix(), Scheme(4, 32)
    rtn, searched = (((dequantise(quantise(w, scheme, method)) - w) ** 2).mean() for method in ("rtn", "search"))
    assert searched < 0.9 * rtn
    plan = Plan(scheme, (("head", Scheme(8, 128)), ("norm", None)))
    assert [plan.scheme(name) for name in ("x", "head", "norm")] == [scheme, Scheme(8, 128), None]


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("op", ["Linear", "Embedding"])
def test_the_kernels_read_our_layout(op: str, scheme: Scheme, tmp_path: Path) -> None:
    """The lowered operator in ONNX Runtime against the dequantised matrix in torch."""
    w = matrix()
    found, x = run_operator(op, w, scheme, tmp_path)
    approximation = dequantise(quantise(w, scheme))
    if op == "Embedding":
        assert torch.equal(torch.from_numpy(found), approximation[torch.from_numpy(x)])
    else:
        wanted = torch.from_numpy(x) @ approximation.T
        # The kernel rounds activations to 8 bits; a wrong layout would be off by the size of the result.
        assert ((torch.from_numpy(found) - wanted).std() / wanted.std()).item() < 0.02


def run_operator(op: str, w: torch.Tensor, scheme: Scheme, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """One operator of the dialect, lowered, with its weights filled in; its result and input."""
    rows, columns = w.shape
    rng = np.random.default_rng(1)
    if op == "Linear":
        x = rng.normal(size=(1, 5, columns)).astype(np.float32)
        source = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1, "S", columns]))
    else:
        x = rng.integers(0, rows, (1, 5))
        source = ir.Value(name="x", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([1, "S"]))
    graph = ir.Graph([source], [], nodes=[], opset_imports={"": 23, "com.microsoft": 1, dialect.DOMAIN: 1})
    table = weight(graph, "w", ir.DataType.FLOAT, (rows, columns), Recipe(("w",)))
    node = ir.node(op, [source, table], domain=dialect.DOMAIN, version=1)
    node.outputs[0].name = "y"
    node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    node.outputs[0].shape = ir.Shape([1, "S", rows if op == "Linear" else columns])
    graph.append(node)
    graph.outputs.append(node.outputs[0])
    LowerWeights(scheme).edit(graph)
    quantised = quantise(w, scheme)
    parts = {"data": quantised.data, "scales": quantised.scales, "zero_points": quantised.zero_points}
    for value in list(graph.initializers.values()):
        recipe = get_recipe(value)
        if recipe is None:
            continue
        if recipe.part == "float":
            del graph.initializers[value.name or ""]
            continue
        assert value.shape is not None
        value.const_value = ir.tensor(parts[recipe.part].numpy().reshape([int(str(dim)) for dim in value.shape]), name=value.name)
    ir.save(ir.Model(graph, ir_version=10), folder / "op.onnx")
    session = ort.InferenceSession(str(folder / "op.onnx"), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0], x
