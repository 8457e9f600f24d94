"""Logits of OpenVINO on given texts, in openvino-genai's environment: ``openvino_logits.py MODEL default|f32 TEXTS_JSON FOLDER``.

Runs every list of token ids of TEXTS_JSON and writes FOLDER/N.npy, float32 ``[n, V]``. Hints and their defaults are those of
``run_openvino_genai.py``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import openvino as ov


def main() -> None:
    folder, precision, texts, output = sys.argv[1:]
    options = {"INFERENCE_PRECISION_HINT": "f32"} if precision == "f32" else {}
    model = ov.Core().compile_model(Path(folder) / "openvino_model.xml", "CPU", options)
    names = {name for port in model.inputs for name in port.names}
    for index, ids in enumerate(json.loads(Path(texts).read_text())):
        request = model.create_infer_request()  # its cache is empty
        feeds = {
            "input_ids": np.array([ids], np.int64),
            "attention_mask": np.ones((1, len(ids)), np.int64),
            "position_ids": np.arange(len(ids), dtype=np.int64)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        found = request.infer({name: value for name, value in feeds.items() if name in names})
        np.save(Path(output) / f"{index}.npy", np.asarray(found["logits"][0], np.float32))


if __name__ == "__main__":
    main()
