"""openvino-genai as a worker: ``run_openvino_genai.py MODEL THREADS``."""

from __future__ import annotations

import sys
import time

from worker import Answer, serve

start = time.perf_counter()
import numpy as np  # noqa: E402
import openvino as ov  # noqa: E402
import openvino_genai as genai  # noqa: E402

MODEL, THREADS = sys.argv[1], int(sys.argv[2])
DRAFTED, NGRAM = 3, 3
pipelines = {
    "plain": genai.LLMPipeline(MODEL, "CPU", INFERENCE_NUM_THREADS=THREADS),
    "n-gram": genai.LLMPipeline(MODEL, "CPU", INFERENCE_NUM_THREADS=THREADS, prompt_lookup=True),
}
loaded = time.perf_counter() - start


def generate(mode: str, ids: list[int], new_tokens: int) -> Answer:
    config = genai.GenerationConfig()
    config.max_new_tokens, config.do_sample, config.ignore_eos = new_tokens, False, True
    config.apply_chat_template = False
    if mode == "n-gram":
        config.num_assistant_tokens, config.max_ngram_size = DRAFTED, NGRAM
    prompt = ov.Tensor(np.array([ids], dtype=np.int64))
    inputs = genai.TokenizedInputs(prompt, ov.Tensor(np.ones((1, len(ids)), dtype=np.int64)))
    begin = time.perf_counter()
    result = pipelines[mode].generate(inputs, config)
    taken = time.perf_counter() - begin
    first = result.perf_metrics.get_ttft().mean / 1000
    return [int(token) for token in result.tokens[0]], first, taken - first


serve(f"openvino-genai {genai.__version__}", loaded, {mode: lambda ids, count, mode=mode: generate(mode, ids, count) for mode in pipelines})
