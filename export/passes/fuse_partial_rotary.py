"""A head that is cut, rotated in its first part and joined again becomes one ``Rotary`` on the whole head (Phi, GPT-NeoX, StableLM).

The operator takes the number of dimensions from the angles and leaves the rest of each head alone. Runs before FlattenHeads,
on ``[1, heads, S, D]``.
"""

from __future__ import annotations

import onnx_ir as ir

from edgespec.export.passes.base import GraphPass, dialect_nodes, is_op, only_user, replace, static_shape
from edgespec.export.trace import dialect


class FusePartialRotary(GraphPass):
    def edit(self, graph: ir.Graph) -> bool:
        changed = False
        for rotary in dialect_nodes(graph, "Rotary"):
            join = only_user(rotary.outputs[0])
            if join is None or not is_op(join, "Concat") or len(join.inputs) != 2 or join.inputs[0] is not rotary.outputs[0]:
                continue
            shape, joined = static_shape(rotary.inputs[0]), static_shape(join.outputs[0])
            if shape is None or joined is None or len(joined) != 4 or join.attributes["axis"].as_int() not in (-1, 3):
                continue
            width, whole = shape[-1], joined[-1]
            first, second = _cut(rotary.inputs[0]), _cut(join.inputs[1])
            if first is None or second is None or first[0] is not second[0] or width is None or whole is None:
                continue
            source = static_shape(first[0])
            if first[1] != 0 or second[1] != width or source is None or source[-1] != whole:
                continue  # not the two parts of one head, in order
            fused = ir.node("Rotary", [first[0], *rotary.inputs[1:]], domain=dialect.DOMAIN, version=1)
            fused.attributes.update(rotary.attributes)
            replace(graph, join, fused)
            graph.remove(rotary, safe=True)
            changed = True
        return changed


def _cut(value: ir.Value | None) -> tuple[ir.Value, int] | None:
    """What ``value`` is a slice of along its last axis, and from where on; None when it is no such slice."""
    node = value.producer() if value is not None else None
    if node is None or not is_op(node, "Slice") or node.inputs[0] is None:
        return None
    source, numbers = node.inputs[0], [ir.convenience.get_const_tensor(part) for part in node.inputs[1:] if part is not None]
    if len(numbers) < 3 or any(number is None or number.size != 1 for number in numbers) or source.shape is None:
        return None
    start, _, axis, *step = (int(number.numpy().reshape(())) for number in numbers if number is not None)
    if axis not in (-1, len(source.shape) - 1) or step not in ([], [1]):
        return None
    return source, start
