"""transformers on torch as a worker: ``run_transformers.py CHECKPOINT THREADS [DRAFT]``. Its weights are float32."""

from __future__ import annotations

import sys
import time
from typing import Any

from worker import serve

start = time.perf_counter()
import torch  # noqa: E402
import transformers  # noqa: E402
from transformers_loop import modes_of  # noqa: E402

torch.set_num_threads(int(sys.argv[2]))


def load(checkpoint: str) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()


models = [load(checkpoint) for checkpoint in (sys.argv[1], *sys.argv[3:])]
transformers.AutoTokenizer.from_pretrained(sys.argv[1])
loaded = time.perf_counter() - start
serve(f"transformers {transformers.__version__}, torch {torch.__version__}, float32", loaded, modes_of(*models))
