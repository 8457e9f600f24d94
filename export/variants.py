"""The webgpu and cuda profiles: a model once more, as graphs for passes of any width out of what another provider's kernels do right or
fast, over the bundle's own weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir

from edgespec.export.passes import Pipeline, Style
from edgespec.export.passes.half_floats import check_half
from edgespec.export.row_graphs import put_graph, take_graph
from edgespec.export.static_profile import WriteGraph
from edgespec.manifest import Variant

CUDA, WEBGPU = "cuda", "webgpu"
TOP = 64
STYLES = {
    # WebGPU's attention ignores position_ids where it rotates q and k, and there is no FusedMatMul.
    WEBGPU: (Style(packed=False, standard=True),),
    # CUDA's attention has kernels for 16-bit floats alone, and its fast ones take no bias: one graph for chains and one for trees.
    CUDA: (Style(trees=False, half=True), Style(packed=False, half=True)),
}


def check(traced: ir.Model, profiles: tuple[str, ...]) -> None:
    """Refuse what a profile cannot be made of.

    Raises:
        UnsupportedModelError: says what it is about the model.
    """
    if CUDA in profiles:
        check_half(traced.graph)


def write_variant(
    name: str, profile: str, vocabulary: int, passes: Callable[[Style], Pipeline], folder: Path, write: WriteGraph
) -> Variant:
    """Have the graphs of the model ``name`` written into ``folder`` for this profile; its tokenizer has ``vocabulary`` tokens."""
    main, *trees = STYLES[profile]
    graph, tree, take, put = (f"{name}.{profile}{part}.onnx" for part in ("", ".tree", ".take", ".put"))
    top = min(TOP, vocabulary)
    for style, file in zip((main, *trees), (graph, tree), strict=False):
        write(passes(dataclasses.replace(style, top=(top, vocabulary))), file)
    caches = ir.load(folder / graph).graph
    ir.save(take_graph(caches), folder / take)
    ir.save(put_graph(caches), folder / put)
    return Variant(graph, tree=tree if trees else None, kv_dtype="float16" if main.half else "float32", top=top, take=take, put=put)
