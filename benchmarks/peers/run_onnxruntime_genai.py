"""onnxruntime-genai as a worker: ``run_onnxruntime_genai.py MODEL THREADS``. A pair drafts with its draft in every mode."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from worker import DRAFTED, NGRAM, Answer, serve

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
start = time.perf_counter()
import numpy as np  # noqa: E402
import onnxruntime_genai as og  # noqa: E402

config = Path(sys.argv[1]) / "genai_config.json"
settings = json.loads(config.read_text())
for name in settings["model"].keys() & {"decoder", "draft"}:
    settings["model"][name]["session_options"]["intra_op_num_threads"] = int(sys.argv[2])
config.write_text(json.dumps(settings, indent=4))
model = og.Model(sys.argv[1])
og.Tokenizer(model)  # llama.cpp, openvino-genai and we load it with the model
loaded = time.perf_counter() - start


def generate(ids: list[int], new_tokens: int, **speculative: object) -> Answer:
    params = og.GeneratorParams(model)
    if speculative:
        params.set_speculative_options(**speculative)
    # min_length keeps it from stopping at the end of a text, as the other engines are kept from it.
    params.set_search_options(do_sample=False, max_length=len(ids) + new_tokens, min_length=len(ids) + new_tokens)
    generator = og.Generator(model, params)
    begin = time.perf_counter()
    generator.append_tokens(np.array([ids], dtype=np.int32))
    generator.generate_next_token()
    first = time.perf_counter()
    while len(generator.get_sequence(0)) < len(ids) + new_tokens:
        generator.generate_next_token()
    end = time.perf_counter()
    return [int(token) for token in generator.get_sequence(0)[len(ids) :]], first - begin, end - first


ALONE: dict[str, dict[str, object]] = {
    "plain": {},
    "n-gram": {"ngram_size": NGRAM, "max_draft_tokens": DRAFTED, "ngram_chained_lookup": True},
}
PAIR: dict[str, dict[str, object]] = {f"draft of {DRAFTED}": {"max_draft_tokens": DRAFTED}}
modes = PAIR if "draft" in settings["model"] else ALONE
serve(
    f"onnxruntime-genai {og.__version__}",
    loaded,
    {name: lambda ids, count, o=options: generate(ids, count, **o) for name, options in modes.items()},
)
