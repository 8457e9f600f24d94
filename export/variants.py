"""The webgpu profile: a model once more, as a graph for passes of any width out of what another provider's kernels do right, over the
bundle's own weights."""

from __future__ import annotations

from collections.abc import Callable

from edgespec.export.passes import Pipeline, Style
from edgespec.export.static_profile import WriteGraph
from edgespec.manifest import Variant

STYLES = {
    # WebGPU's attention ignores position_ids where it rotates q and k, and there is no FusedMatMul.
    "webgpu": Style(packed=False, standard=True),
}


def write_variant(name: str, profile: str, passes: Callable[[Style], Pipeline], write: WriteGraph) -> Variant:
    """Have the graph of the model ``name`` written for this profile."""
    graph = f"{name}.{profile}.onnx"
    write(passes(STYLES[profile]), graph)
    return Variant(graph)
