"""llama.cpp as a worker, through xllamacpp's wheel: ``run_xllamacpp.py GGUF THREADS plain|n-gram|draft [DRAFT_GGUF]``.

Its answers carry the text and not the token ids, so texts are what is compared.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from worker import DRAFTED, NGRAM, Answer, serve

start = time.perf_counter()
import xllamacpp  # noqa: E402

THREADS, MODE = int(sys.argv[2]), sys.argv[3]


def server() -> Any:
    params = xllamacpp.CommonParams()
    params.model.path = sys.argv[1]
    params.n_ctx, params.n_parallel, params.verbosity = 4096, 1, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = THREADS
    kinds, drafting = xllamacpp.common_speculative_type, params.speculative
    if MODE == "n-gram":
        drafting.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        drafting.ngram_simple.size_n, drafting.ngram_simple.size_m = NGRAM, DRAFTED
    elif MODE == "draft":
        drafting.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        drafting.draft.mparams.path = sys.argv[4]
        drafting.draft.n_max, drafting.draft.n_min, drafting.draft.p_min = DRAFTED, 0, 0.0
        drafting.draft.cpuparams.n_threads = drafting.draft.cpuparams_batch.n_threads = THREADS
    return xllamacpp.Server(params)


engine = server()
loaded = time.perf_counter() - start


def generate(ids: list[int], new_tokens: int) -> Answer:
    request = {"prompt": ids, "n_predict": new_tokens, "temperature": 0.0, "ignore_eos": True, "cache_prompt": False, "stream": False}
    answer = engine.handle_completions(request)
    timings = answer["timings"]
    # The first token comes with the prompt's pass.
    return list(answer["choices"][0]["text"].encode()), timings["prompt_ms"] / 1000, timings["predicted_ms"] / 1000


serve(f"llama.cpp (xllamacpp {xllamacpp.__version__})", loaded, {f"draft of {DRAFTED}" if MODE == "draft" else MODE: generate})
