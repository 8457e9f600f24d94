"""Graph passes on the smallest graphs that match, and on some that nearly do and must stay as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from edgespec.errors import UsageError
from edgespec.export.passes.cancel_layout import CancelLayout
from edgespec.export.passes.constant_shapes import ConstantShapes
from edgespec.export.passes.early_exit import EarlyExit
from edgespec.export.passes.fold_offsets import FoldOffsets
from edgespec.export.passes.fuse_skip_norm import FuseSkipNorm
from edgespec.export.passes.lower_norm import LowerNorm
from edgespec.export.passes.merge_projections import MergeProjections
from edgespec.export.passes.remove_markers import RemoveMarkers
from edgespec.export.recipe import Recipe, get_recipe, weight
from edgespec.export.trace import dialect

FLOAT = ir.DataType.FLOAT


class Builder:
    """A graph of one chain or a few branches, with shapes as the tracer leaves them."""

    def __init__(self, **inputs: list[int | str]) -> None:
        values = [ir.Value(name=name, type=ir.TensorType(FLOAT), shape=ir.Shape(shape)) for name, shape in inputs.items()]
        self.graph = ir.Graph(values, [], nodes=[], opset_imports={"": 23, "com.microsoft": 1, dialect.DOMAIN: 1}, name="g")
        self.values = {value.name: value for value in values}

    def __getitem__(self, name: str) -> ir.Value:
        return self.values[name]

    def add(
        self, op: str, inputs: list[ir.Value | None], shape: list[int | str] | None, domain: str = "", **attributes: object
    ) -> ir.Value:
        node = ir.node(op, inputs, attributes, domain=domain, version=1 if domain else None)  # type: ignore[arg-type]
        node.outputs[0].type = ir.TensorType(FLOAT)
        node.outputs[0].shape = ir.Shape(shape) if shape is not None else None
        self.graph.append(node)
        return node.outputs[0]

    def own(self, op: str, inputs: list[ir.Value | None], shape: list[int | str], **attributes: object) -> ir.Value:
        return self.add(op, inputs, shape, dialect.DOMAIN, **attributes)

    def weight(self, name: str, *shape: int) -> ir.Value:
        return weight(self.graph, name, FLOAT, shape, Recipe((name,)))

    def number(self, name: str, array: np.ndarray) -> ir.Value:
        tensor = ir.tensor(array, name=name)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
        self.graph.register_initializer(value)
        return value

    def done(self, *outputs: ir.Value) -> ir.Graph:
        for index, value in enumerate(outputs):
            value.name = f"y{index}"
            self.graph.outputs.append(value)
        return self.graph


def ops(graph: ir.Graph) -> list[str]:
    return [node.op_type for node in graph]


def run(graph: ir.Graph, folder: Path, **inputs: np.ndarray) -> list[np.ndarray]:
    """The graph's outputs in ONNX Runtime, weights being filled with fixed random numbers by name."""
    for value in graph.initializers.values():
        if get_recipe(value) is not None:
            assert value.shape is not None
            value.const_value = ir.tensor(random_weight(value), name=value.name)
    ir.save(ir.Model(graph, ir_version=10), folder / "g.onnx")
    found: list[np.ndarray] = ort.InferenceSession(str(folder / "g.onnx"), providers=["CPUExecutionProvider"]).run(None, inputs)
    return found


def random_weight(value: ir.Value) -> np.ndarray:
    recipe = get_recipe(value)
    assert recipe is not None
    assert value.shape is not None
    parts = []
    rows = int(str(value.shape[0])) // len(recipe.sources)
    for source in recipe.sources:
        rng = np.random.default_rng(sum(source.encode()))
        parts.append(rng.normal(size=(rows, *(int(str(dim)) for dim in value.shape[1:]))).astype(np.float32))
    return np.concatenate(parts) + np.float32(recipe.offset)


@pytest.mark.parametrize(("second", "gone"), [((0, 2, 1, 3), True), ((0, 1, 3, 2), False)])
def test_transposes_that_undo_each_other_cancel(second: tuple[int, ...], gone: bool) -> None:
    build = Builder(x=[1, "S", 4, 8])
    turned = build.add("Transpose", [build["x"]], [1, 4, "S", 8], perm=[0, 2, 1, 3])
    back = build.add("Transpose", [turned], [1, "S", 4, 8] if gone else [1, 4, 8, "S"], perm=list(second))
    graph = build.done(build.add("Relu", [back], None))
    CancelLayout().edit(graph)
    assert ("Transpose" not in [node.op_type for node in graph if node.outputs[0].uses() or node.op_type == "Relu"]) is gone
    assert (graph.outputs[0].producer().inputs[0] is build["x"]) is gone  # type: ignore[union-attr]


def test_a_reshape_back_to_the_shape_before_cancels_and_another_stays() -> None:
    build = Builder(x=[1, "S", 32])
    split = build.add("Reshape", [build["x"], build.number("a", np.array([1, -1, 4, 8]))], [1, "S", 4, 8])
    same = build.add("Reshape", [split, build.number("b", np.array([1, -1, 32]))], [1, "S", 32])
    other = build.add("Reshape", [split, build.number("c", np.array([1, -1, 16]))], [1, "2*S", 16])
    graph = build.done(build.add("Relu", [same], [1, "S", 32]), build.add("Relu", [other], [1, "2*S", 16]))
    CancelLayout().edit(graph)
    relus = [node for node in graph if node.op_type == "Relu"]
    assert relus[0].inputs[0] is build["x"]
    kept = relus[1].inputs[0].producer()  # type: ignore[union-attr]
    assert kept is not None
    assert (kept.op_type, kept.inputs[0]) == ("Reshape", build["x"])


def test_a_norm_moves_in_front_of_a_transpose_that_keeps_its_axis() -> None:
    def norm_behind(perm: list[int], shape: list[int | str]) -> list[str]:
        build = Builder(x=[1, "S", 4, 8])
        turned = build.add("Transpose", [build["x"]], shape, perm=perm)
        normed = build.own("RMSNorm", [turned, build.weight("w", 8)], shape, epsilon=1e-6)
        graph = build.done(build.add("Relu", [normed], shape))
        CancelLayout().edit(graph)
        return ops(graph)

    assert norm_behind([0, 2, 1, 3], [1, 4, "S", 8]) == ["RMSNorm", "Transpose", "Relu"]
    assert norm_behind([0, 1, 3, 2], [1, "S", 8, 4]) == ["Transpose", "RMSNorm", "Relu"]


def test_only_shapes_with_one_unknown_become_constant() -> None:
    build = Builder(x=[1, "S", 32])
    shape = build.add("Shape", [build["x"]], [3])
    one = build.add("Reshape", [build["x"], shape], [1, "S", 32])
    two = build.add("Reshape", [build["x"], shape], ["A", "S", 32])
    graph = build.done(one, two)
    ConstantShapes().edit(graph)
    first, second = (node for node in graph if node.op_type == "Reshape")
    assert ir.convenience.get_const_tensor(first.inputs[1]).numpy().tolist() == [1, -1, 32]  # type: ignore[arg-type, union-attr]
    assert second.inputs[1] is shape


def test_projections_of_one_input_become_one_product(tmp_path: Path) -> None:
    def build(merged: bool) -> ir.Graph:
        make = Builder(x=[1, "S", 8], z=[1, "S", 8])
        x, z = make["x"], make["z"]
        q = make.own("Linear", [x, make.weight("q", 6, 8)], [1, "S", 6])
        k = make.own("Linear", [x, make.weight("k", 6, 8)], [1, "S", 6])
        alone = make.own("Linear", [z, make.weight("o", 4, 8)], [1, "S", 4])
        graph = make.done(q, k, alone)
        if merged:
            assert MergeProjections().edit(graph)
        for node in [node for node in graph if node.op_type == "Linear"]:
            new = ir.node("FusedMatMul", node.inputs, {"transB": 1}, domain="com.microsoft", version=1, outputs=None)
            graph.insert_before(node, new)
            old, after = node.outputs[0], new.outputs[0]
            after.type, after.shape, name = old.type, old.shape, old.name
            old.name = None
            old.replace_all_uses_with(after, replace_graph_outputs=True)
            after.name = name
            graph.remove(node, safe=True)
        return graph

    merged = build(True)
    assert ops(merged).count("FusedMatMul") == 2
    assert {get_recipe(value).sources for value in merged.initializers.values() if get_recipe(value)} >= {("q", "k"), ("o",)}  # type: ignore[union-attr]
    x = np.random.default_rng(0).normal(size=(2, 1, 3, 8)).astype(np.float32)
    for ours, plain in zip(run(merged, tmp_path, x=x[0], z=x[1]), run(build(False), tmp_path, x=x[0], z=x[1]), strict=True):
        assert np.allclose(ours, plain, atol=1e-5)


def test_projections_with_and_without_bias_are_not_mixed() -> None:
    build = Builder(x=[1, "S", 8])
    x = build["x"]
    outputs = [build.own("Linear", [x, build.weight(name, 4, 8)], [1, "S", 4]) for name in ("a", "b")]
    outputs += [build.own("Linear", [x, build.weight(name, 4, 8), build.weight(name + "b", 4)], [1, "S", 4]) for name in ("c", "d")]
    graph = build.done(*outputs)
    MergeProjections().edit(graph)
    linears = [node for node in graph if node.op_type == "Linear"]
    assert sorted(len(node.inputs) for node in linears) == [2, 3]


def test_residual_and_norm_fuse_to_the_same_values(tmp_path: Path) -> None:
    def build(fused: bool) -> ir.Graph:
        make = Builder(a=[1, "S", 8], b=[1, "S", 8])
        total = make.add("Add", [make["a"], make["b"]], [1, "S", 8])
        normed = make.own("RMSNorm", [total, make.weight("w", 8)], [1, "S", 8], epsilon=1e-5)
        graph = make.done(make.add("Relu", [normed], [1, "S", 8]), make.add("Neg", [total], [1, "S", 8]))
        assert FuseSkipNorm().edit(graph) if fused else True
        LowerNorm().edit(graph)
        return graph

    fused = build(True)
    assert "SkipSimplifiedLayerNormalization" in ops(fused)
    assert "Add" not in ops(fused)
    rng = np.random.default_rng(0)
    inputs = {name: rng.normal(size=(1, 3, 8)).astype(np.float32) for name in "ab"}
    for ours, plain in zip(run(fused, tmp_path, **inputs), run(build(False), tmp_path, **inputs), strict=True):
        assert np.allclose(ours, plain, atol=1e-6)


def test_a_sum_that_broadcasts_is_not_fused() -> None:
    build = Builder(a=[1, "S", 8], b=[8])
    total = build.add("Add", [build["a"], build["b"]], [1, "S", 8])
    graph = build.done(build.own("RMSNorm", [total, build.weight("w", 8)], [1, "S", 8], epsilon=1e-5))
    assert not FuseSkipNorm().edit(graph)


def test_an_offset_on_a_weight_becomes_part_of_its_recipe() -> None:
    build = Builder(x=[1, "S", 8])
    one, many = build.number("one", np.array(1.0, np.float32)), build.number("many", np.arange(8, dtype=np.float32))
    folded = build.add("Add", [build.weight("w", 8), one], [8])
    kept = build.add("Add", [build.weight("v", 8), many], [8])
    also_kept = build.add("Add", [build["x"], one], [1, "S", 8])
    graph = build.done(*(build.add("Mul", [build["x"], value], [1, "S", 8]) for value in (folded, kept, also_kept)))
    assert FoldOffsets().edit(graph)
    first = graph.outputs[0].producer().inputs[1]  # type: ignore[union-attr]
    assert get_recipe(first) == Recipe(("w",), offset=1.0)
    assert ops(graph).count("Add") == 2


def layered(layers: int) -> ir.Graph:
    """x -> layer 0 -> marker -> ... -> Neg, each layer with its KV."""
    kv: dict[str, list[int | str]] = {f"past_key_values.{i}.{part}": [1, 1, "C", 4] for i in range(layers) for part in ("key", "value")}
    build = Builder(input_ids=[1, "S", 8], **kv)
    x = build["input_ids"]
    present = []
    for index in range(layers):
        x = build.add("Relu" if index % 2 else "Sigmoid", [x], [1, "S", 8])
        x = build.own("LayerOutput", [x], [1, "S", 8], layer=index)
        present += [build.add("Identity", [build[f"past_key_values.{index}.{part}"]], [1, 1, "C", 4]) for part in ("key", "value")]
    graph = build.done(build.add("Neg", [x], [1, "S", 8]), *present)
    for value, name in zip(
        graph.outputs, ["logits", *(f"present.{i}.{part}" for i in range(layers) for part in ("key", "value"))], strict=True
    ):
        value.name = name
    return graph


def test_an_early_exit_drops_the_later_layers_and_their_kv(tmp_path: Path) -> None:
    graph = layered(3)
    EarlyExit(1).edit(graph)
    RemoveMarkers().edit(graph)
    assert ops(graph) == ["Sigmoid", "Identity", "Identity", "Neg"]
    assert [value.name for value in graph.outputs] == ["logits", "present.0.key", "present.0.value"]
    assert [value.name for value in graph.inputs] == ["input_ids", "past_key_values.0.key", "past_key_values.0.value"]
    x, kv = np.ones((1, 2, 8), np.float32), np.zeros((1, 1, 4, 4), np.float32)
    found = run(graph, tmp_path, **{"input_ids": x, "past_key_values.0.key": kv, "past_key_values.0.value": kv})
    assert np.allclose(found[0], -1 / (1 + np.exp(-1.0)))


@pytest.mark.parametrize("layers", [0, 3, 4])
def test_an_early_exit_needs_fewer_layers_than_there_are(layers: int) -> None:
    with pytest.raises(UsageError, match="1 to 2"):
        EarlyExit(layers).edit(layered(3))
