"""transformers' generation, timed: for torch's models and for optimum-onnx's, which run in it too."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers.generation.streamers import BaseStreamer
from worker import DRAFTED, NGRAM, Answer


class FirstToken(BaseStreamer):  # type: ignore[misc]
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
def generate(model: Any, ids: list[int], new_tokens: int, **options: Any) -> Answer:
    noted = FirstToken()
    begin = time.perf_counter()
    prompt = torch.tensor([ids])
    out = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        max_new_tokens=new_tokens,
        pad_token_id=0,
        streamer=noted,
        **options,
    )
    end = time.perf_counter()
    return out[0, len(ids) :].tolist(), noted.first - begin, end - noted.first


def modes_of(model: Any, draft: Any = None) -> dict[str, Callable[[list[int], int], Answer]]:
    """Plain and with n-grams, or with the draft if there is one. No token ends a text."""
    model.generation_config.eos_token_id = None
    modes: dict[str, dict[str, Any]] = {
        "plain": {},
        "n-gram": {"prompt_lookup_num_tokens": DRAFTED, "max_matching_ngram_size": NGRAM},
    }
    if draft is not None:
        # By default it drafts more or fewer from round to round, and stops where it is unsure.
        settings = draft.generation_config
        settings.eos_token_id = None
        settings.num_assistant_tokens, settings.num_assistant_tokens_schedule = DRAFTED, "constant"
        settings.assistant_confidence_threshold = 0.0
        modes = {f"draft of {DRAFTED}": {"assistant_model": draft}}
    return {name: functools.partial(generate, model, **options) for name, options in modes.items()}
