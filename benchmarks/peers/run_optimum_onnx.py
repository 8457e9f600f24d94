"""optimum-onnx as a worker: ``run_optimum_onnx.py MODEL THREADS [DRAFT]``. transformers' loop runs ONNX Runtime's sessions."""

from __future__ import annotations

import os
import sys
import time
from importlib.metadata import version
from typing import Any

from worker import serve

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
start = time.perf_counter()
import onnxruntime  # noqa: E402
import torch  # noqa: E402
from optimum.onnxruntime import ORTModelForCausalLM  # noqa: E402
from transformers_loop import modes_of  # noqa: E402

THREADS = int(sys.argv[2])
torch.set_num_threads(THREADS)


def load(folder: str) -> Any:
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = THREADS
    return ORTModelForCausalLM.from_pretrained(folder, session_options=settings)


models = [load(folder) for folder in (sys.argv[1], *sys.argv[3:])]
loaded = time.perf_counter() - start
serve(f"optimum-onnx {version('optimum-onnx')}, ONNX Runtime {onnxruntime.__version__}", loaded, modes_of(*models))
