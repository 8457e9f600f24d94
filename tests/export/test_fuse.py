"""The parts of a target's graph with a head in it that are made for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from edgespec.export.heads.fuse import _likeliest, _next_ids, _Nodes, block_of


@pytest.mark.parametrize("width", [1, 7, 263, 288, 1024, 4096])
def test_the_likeliest_is_the_first_of_the_largest(width: int, tmp_path: Path) -> None:
    logits = np.random.default_rng(0).integers(-9, 9, (1, 40, width)).astype(np.float32)  # ties abound
    logits[0, 0] = -1e9
    logits[0, 1] = np.arange(width)
    assert run(tmp_path, logits, None, None).tolist() == logits[0].argmax(axis=1).tolist()


def test_given_tokens_stay_and_others_are_the_likeliest(tmp_path: Path) -> None:
    logits = np.zeros((1, 3, 288), np.float32)
    logits[0, [0, 1, 2], [250, 251, 252]] = 1
    taken = run(tmp_path, logits, np.array([[5, -1, 7, -1, 0]]), np.array([1, 2, 3]))
    assert taken.tolist() == [[5, 250, 7, 252, 0]]


def run(folder: Path, logits: np.ndarray, given: np.ndarray | None, rows: np.ndarray | None) -> np.ndarray:
    """What the nodes make of these inputs; the likeliest tokens alone where none are given."""
    inputs = {"logits": logits} | ({} if given is None or rows is None else {"given": given, "rows": rows})
    values = {
        name: ir.Value(name=name, type=ir.TensorType(ir.DataType.from_numpy(array.dtype)), shape=ir.Shape(array.shape))
        for name, array in inputs.items()
    }
    graph = ir.Graph(list(values.values()), [], nodes=[], opset_imports={"": 23}, name="test")
    nodes = _Nodes(graph)
    found = _likeliest(nodes, values["logits"]) if given is None else _next_ids(nodes, values["given"], values["rows"], values["logits"])
    found.type = ir.TensorType(ir.DataType.INT64)
    graph.extend(nodes.made)
    graph.outputs.append(found)
    ir.save(ir.Model(graph, ir_version=10), folder / "test.onnx")
    (result,) = ort.InferenceSession(folder / "test.onnx", providers=["CPUExecutionProvider"]).run(None, inputs)
    return np.asarray(result)


@pytest.mark.parametrize(
    ("width", "block"), [(49152, 256), (151936, 1187), (128256, 384), (50257, 1733), (262144, 512), (288, 18), (263, None), (7, None)]
)
def test_blocks_are_about_as_many_as_they_have_numbers(width: int, block: int | None) -> None:
    assert block_of(width) == block
