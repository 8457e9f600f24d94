"""openvino-genai as a worker: ``run_openvino_genai.py MODEL THREADS plain|n-gram|draft default|f32 [DRAFT]``.

By default it computes in bfloat16 where the processor can.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from worker import DRAFTED, NGRAM, Answer, serve

start = time.perf_counter()
import numpy as np  # noqa: E402
import openvino as ov  # noqa: E402
import openvino_genai as genai  # noqa: E402

MODEL, THREADS, MODE, PRECISION = sys.argv[1], int(sys.argv[2]), *sys.argv[3:5]
options: dict[str, Any] = {"INFERENCE_NUM_THREADS": THREADS} | ({"INFERENCE_PRECISION_HINT": "f32"} if PRECISION == "f32" else {})
if MODE == "n-gram":
    pipeline = genai.LLMPipeline(MODEL, "CPU", prompt_lookup=True, **options)
elif MODE == "draft":
    pipeline = genai.LLMPipeline(MODEL, "CPU", draft_model=genai.draft_model(sys.argv[5], "CPU", **options), **options)
else:
    pipeline = genai.LLMPipeline(MODEL, "CPU", **options)
loaded = time.perf_counter() - start


def generate(ids: list[int], new_tokens: int) -> Answer:
    config = genai.GenerationConfig()
    config.max_new_tokens, config.do_sample, config.ignore_eos = new_tokens, False, True
    config.apply_chat_template = False
    if MODE != "plain":
        config.num_assistant_tokens = DRAFTED
    if MODE == "n-gram":
        config.max_ngram_size = NGRAM
    prompt = ov.Tensor(np.array([ids], dtype=np.int64))
    inputs = genai.TokenizedInputs(prompt, ov.Tensor(np.ones((1, len(ids)), dtype=np.int64)))
    begin = time.perf_counter()
    result = pipeline.generate(inputs, config)
    taken = time.perf_counter() - begin
    first = result.perf_metrics.get_ttft().mean / 1000
    return [int(token) for token in result.tokens[0]], first, taken - first


name = f"{MODE} of {DRAFTED}" if MODE == "draft" else MODE
serve(f"openvino-genai {genai.__version__}", loaded, {name if PRECISION == "default" else f"{name}, {PRECISION}": generate})
