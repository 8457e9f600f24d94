"""``python -m edgespec.runtime.memory.pack_build FOLDER GRAPHS``: save graphs with their packed weights; run by pack_cache.

A process of its own, since it holds a model's packs as private memory, and the weights beside them. GRAPHS is a JSON object, from
names to files. Prints whether a session finds the saved packs again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from edgespec.runtime.memory.measure import return_freed_memory, usage
from edgespec.runtime.memory.pack_merge import merge
from edgespec.runtime.memory.weights import read_weights
from edgespec.runtime.ort import import_onnxruntime

LEAST_EXTERNAL = "1024"  # bytes of a tensor; smaller ones go into the graph file


def main() -> None:
    folder, graphs = Path(sys.argv[1]), json.loads(sys.argv[2])
    for name, graph in graphs.items():
        _session(Path(graph), {"optimized_model_filepath": str(folder / f"{name}.onnx")}, f"{name}.bin")
    merge(folder, list(graphs), "packs.bin")
    return_freed_memory()
    print(json.dumps({"found_again": _found_again(folder / "target.onnx", read_weights(Path(graphs["target"])).packed)}))


def _found_again(graph: Path, packed: int) -> bool:
    before = usage().private
    session = _session(graph, {})
    grown = usage().private - before
    del session
    return grown < packed / 2


def _session(graph: Path, settings: dict[str, Any], weights: str = "") -> Any:
    ort: Any = import_onnxruntime()
    options = ort.SessionOptions()
    options.enable_cpu_mem_arena = False
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    for name, value in settings.items():
        setattr(options, name, value)
    if weights:
        options.add_session_config_entry("session.save_external_prepacked_constant_initializers", "1")
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", weights)
        options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", LEAST_EXTERNAL)
    return ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])


if __name__ == "__main__":
    main()
