"""How large the numbers are that a graph of fixed shapes computes with, seen on text, for its form in whole numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from edgespec.errors import UsageError
from edgespec.export.passes.quantise_activations import Ranges, Seen
from edgespec.manifest import ModelSpec
from edgespec.runtime.cores import default_threads
from edgespec.runtime.models.rows import HALF_MASKED, bias_name
from edgespec.runtime.providers.session import DEFAULT_PROVIDERS, make_session

PAST, PRESENT = "past_key_values.", "present."


def activation_ranges(graph: Path, spec: ModelSpec, texts: Sequence[Sequence[int]]) -> Ranges:
    """What every float value that depends on the graph's inputs is like, by its name.

    Args:
        graph: one of the static graphs of the model ``spec``, with names for its values.
        spec: tells the windows of the layers.
        texts: token ids; each is read from an empty cache, as far as that has room.
    """
    probe = graph.with_name(f"{graph.stem}.probe.onnx")
    proto = onnx.load(str(graph), load_external_data=False)
    outputs = {value.name for value in proto.graph.output}
    # Their types are for ONNX Runtime to find out.
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in _computed(proto.graph) if name not in outputs)
    onnx.save(proto, str(probe))
    try:
        session = make_session(probe, default_threads(), DEFAULT_PROVIDERS)
        floats = [output.name for output in session.get_outputs() if output.type == "tensor(float)"]
        windows = {layer.window for layer in spec.layers} | {None}
        shapes = {value.name: tuple(value.shape) for value in session.get_inputs()}
        low, high, total = (dict.fromkeys(floats, 0.0) for _ in range(3))
        passes = 0
        for text in texts:
            for arrays in _passes(session, floats, shapes, windows, text):
                passes += 1
                for name, array in zip(floats, arrays, strict=True):
                    low[name], high[name] = min(low[name], float(array.min())), max(high[name], float(array.max()))
                    total[name] += float(np.abs(array).mean())
    finally:
        probe.unlink()
    if not passes:
        width = shapes["input_ids"][1]
        raise UsageError(
            f"--calibration: no text has the {width} tokens of a pass; give a longer one, or --npu-widths with a smaller last number"
        )
    return {name: Seen(low[name], high[name], total[name] / passes) for name in floats}


def _computed(graph: onnx.GraphProto) -> Iterator[str]:
    """Values that are not constant: those that depend on an input, weights that are only unpacked left out."""
    known = {value.name for value in graph.input}
    for node in graph.node:
        if known & set(node.input):
            known.update(node.output)
            yield from node.output


def _passes(
    session: Any, floats: list[str], shapes: Mapping[str, tuple[int, ...]], windows: set[int | None], text: Sequence[int]
) -> Iterator[list[npt.NDArray[np.float32]]]:
    """The values ``floats`` of each pass over a text, one pass behind the other. Padding repeats the last token."""
    width = shapes["input_ids"][1]
    caches = {name: np.zeros(shape, np.float32) for name, shape in shapes.items() if name.startswith(PAST)}
    capacity = next(iter(caches.values())).shape[2]
    for start in range(0, min(len(text), capacity) - width + 1, width):
        positions = start + np.arange(width)
        keys = np.concatenate([np.arange(capacity), positions])
        there = np.concatenate([np.arange(capacity) < start, np.ones(width, bool)])
        seen = there & (keys <= positions[:, None])
        feeds: dict[str, Any] = {
            "input_ids": np.array([text[start : start + width]], np.int64),
            "position_ids": positions[None],
            "logit_rows": np.arange(shapes["logit_rows"][0]),
            **caches,
        }
        for window in windows:
            inside = seen if window is None else seen & (positions[:, None] - keys < window)
            feeds[bias_name(window)] = np.where(inside, 0, HALF_MASKED).astype(np.float32)[None, None]
        found = session.run(floats, {name: feeds[name] for name in shapes})
        for name, array in zip(floats, found, strict=True):
            if name.startswith(PRESENT):
                caches[PAST + name.removeprefix(PRESENT)][:, :, start : start + width] = array
        yield found
