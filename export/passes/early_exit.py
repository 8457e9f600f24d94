"""Cut a decoder after its first N layers (early exit): what follows the last layer then follows layer N.

Needs the ``LayerOutput`` markers. The norm and the head behind the last layer stay, so the shallow model shares them,
and the embedding, with the full one.
"""

from __future__ import annotations

import onnx_ir as ir

from edgespec.errors import UsageError
from edgespec.export.passes.base import GraphPass, dialect_nodes


class EarlyExit(GraphPass):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = layers

    def edit(self, graph: ir.Graph) -> bool:
        marks = {node.attributes["layer"].as_int(): node.outputs[0] for node in dialect_nodes(graph, "LayerOutput")}
        total = len(marks)
        if not 1 <= self.layers < total:
            raise UsageError(f"--draft layers:{self.layers}: the target has {total} layers; choose 1 to {total - 1}")
        if any(dialect_nodes(graph, "SharedAttention")):
            # Such a model's embeddings and widths depend on its depth, so its first layers are no smaller model of its kind.
            raise UsageError(f"--draft layers:{self.layers}: layers of the target share KV, so it cannot be cut; name a draft model")
        marks[total - 1].replace_all_uses_with(marks[self.layers - 1])
        _drop_kv(graph, self.layers)
        return True


def _drop_kv(graph: ir.Graph, layers: int) -> None:
    """Remove the inputs and outputs of the layers that are gone; the nodes between them are unused now."""
    for output in [value for value in graph.outputs if _layer(value) >= layers]:
        graph.outputs.remove(output)
    gone = [value for value in graph.inputs if _layer(value) >= layers]
    for node in reversed(list(graph)):
        if not any(output.is_graph_output() or tuple(output.uses()) for output in node.outputs):
            graph.remove(node, safe=True)
    for value in gone:
        graph.inputs.remove(value)


def _layer(value: ir.Value) -> int:
    """The layer of ``past_key_values.{i}.key`` or ``present.{i}.key``, -1 for other values."""
    parts = (value.name or "").split(".")
    return int(parts[1]) if parts[0] in ("past_key_values", "present") else -1
