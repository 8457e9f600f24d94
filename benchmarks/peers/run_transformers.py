"""transformers on torch as a worker: ``run_transformers.py CHECKPOINT THREADS [DRAFT]``. Its weights are float32."""

from __future__ import annotations

import sys
import time
from typing import Any

from worker import DRAFTED, NGRAM, Answer, serve

start = time.perf_counter()
import torch  # noqa: E402
import transformers  # noqa: E402
from transformers.generation.streamers import BaseStreamer  # noqa: E402

torch.set_num_threads(int(sys.argv[2]))
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
DRAFT = sys.argv[3] if len(sys.argv) > 3 else None
draft = transformers.AutoModelForCausalLM.from_pretrained(DRAFT, dtype=torch.float32).eval() if DRAFT else None
if draft is not None:  # by default it drafts more or fewer from round to round, and stops where it is unsure
    settings = draft.generation_config
    settings.num_assistant_tokens, settings.num_assistant_tokens_schedule = DRAFTED, "constant"
    settings.assistant_confidence_threshold = 0.0
loaded = time.perf_counter() - start


class FirstToken(BaseStreamer):
    """Notes when the first token after the prompt came."""

    def __init__(self) -> None:
        self.calls, self.first = 0, 0.0

    def put(self, value: torch.Tensor) -> None:  # noqa: ARG002
        self.calls += 1
        if self.calls == 2:  # the first call brings the prompt
            self.first = time.perf_counter()

    def end(self) -> None:
        pass


@torch.inference_mode()
def generate(ids: list[int], new_tokens: int, **options: Any) -> Answer:
    noted = FirstToken()
    begin = time.perf_counter()
    prompt = torch.tensor([ids])
    out = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        pad_token_id=0,
        streamer=noted,
        **options,
    )
    end = time.perf_counter()
    return out[0, len(ids) :].tolist(), noted.first - begin, end - noted.first


LOOK_UP = {"prompt_lookup_num_tokens": DRAFTED, "max_matching_ngram_size": NGRAM}
ALONE: dict[str, dict[str, Any]] = {"plain": {}, "n-gram": LOOK_UP}
modes = {f"draft of {DRAFTED}": {"assistant_model": draft}} if draft is not None else ALONE
serve(
    f"transformers {transformers.__version__}, torch {torch.__version__}, float32",
    loaded,
    {name: lambda ids, count, o=options: generate(ids, count, **o) for name, options in modes.items()},
)
