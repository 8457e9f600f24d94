"""What is in the graphs of a bundle."""

from __future__ import annotations

import collections
from pathlib import Path

import onnx


def places(graph: Path) -> set[tuple[str, str]]:
    """File and offset of every weight of a graph."""
    weights = onnx.load(graph, load_external_data=False).graph.initializer
    entries = [{entry.key: entry.value for entry in weight.external_data} for weight in weights]
    return {(entry["location"], entry["offset"]) for entry in entries if entry}


def operators(graph: Path) -> collections.Counter[str]:
    """How many nodes of each kind a graph has."""
    return collections.Counter(node.op_type for node in onnx.load(graph, load_external_data=False).graph.node)
