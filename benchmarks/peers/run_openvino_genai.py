"""openvino-genai as a worker: ``run_openvino_genai.py MODEL THREADS plain|n-gram``."""

from __future__ import annotations

import sys
import time

from worker import Answer, serve

start = time.perf_counter()
import numpy as np  # noqa: E402
import openvino as ov  # noqa: E402
import openvino_genai as genai  # noqa: E402

MODEL, THREADS, MODE = sys.argv[1], int(sys.argv[2]), sys.argv[3]
DRAFTED, NGRAM = 3, 3
options = {"prompt_lookup": True} if MODE == "n-gram" else {}
pipeline = genai.LLMPipeline(MODEL, "CPU", INFERENCE_NUM_THREADS=THREADS, **options)
loaded = time.perf_counter() - start


def generate(ids: list[int], new_tokens: int) -> Answer:
    config = genai.GenerationConfig()
    config.max_new_tokens, config.do_sample, config.ignore_eos = new_tokens, False, True
    config.apply_chat_template = False
    if MODE == "n-gram":
        config.num_assistant_tokens, config.max_ngram_size = DRAFTED, NGRAM
    prompt = ov.Tensor(np.array([ids], dtype=np.int64))
    inputs = genai.TokenizedInputs(prompt, ov.Tensor(np.ones((1, len(ids)), dtype=np.int64)))
    begin = time.perf_counter()
    result = pipeline.generate(inputs, config)
    taken = time.perf_counter() - begin
    first = result.perf_metrics.get_ttft().mean / 1000
    return [int(token) for token in result.tokens[0]], first, taken - first


serve(f"openvino-genai {genai.__version__}", loaded, {MODE: generate})
