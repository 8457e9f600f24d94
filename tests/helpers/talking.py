"""A tiny target that has learnt to answer: its text is neither random nor a loop, so that a draft has something to learn from it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from tests.helpers.bundles import ASSISTANT, CHAT_TEMPLATE, EOS, USER
from tests.helpers.checkpoints import make_model, make_tokenizer

THINGS = ("owl", "boat", "lamp", "river", "cheese", "clock", "bridge", "violin")
KINDS = ("old", "small", "quiet", "golden", "broken", "round")
DEEDS = ("sleeps", "sings", "waits", "turns", "shines")
CONTEXT = 512
STEPS, BATCH, ROWS = 120, 8, 88


def answer(rng: np.random.Generator) -> str:
    thing, other = rng.choice(THINGS, 2, replace=False)
    return f"the {rng.choice(KINDS)} {thing} {rng.choice(DEEDS)} near the {rng.choice(KINDS)} {other}. "


def make_talking_checkpoint(folder: Path, *, chat: bool = True, steps: int = STEPS) -> Path:
    """A Llama of three layers, trained for a few seconds on conversations about things that do something near other things."""
    model = train(make_model("llama", tie_word_embeddings=True, max_position_embeddings=CONTEXT), steps)
    model.save_pretrained(folder)
    make_tokenizer(**({"chat_template": CHAT_TEMPLATE} if chat else {})).save_pretrained(folder)
    return folder


def train(model: PreTrainedModel, steps: int) -> PreTrainedModel:
    rng = np.random.default_rng(0)
    optimiser = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for step in range(steps):
        ids = torch.tensor([conversation(rng) for _ in range(BATCH)])
        optimiser.param_groups[0]["lr"] = 4e-3 * (1 - step / steps)
        loss = model(ids, labels=ids).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    return model.eval()


def conversation(rng: np.random.Generator) -> list[int]:
    """Tokens of a question and an answer, cut to a fixed length."""
    question = rng.choice(("tell me about the ", "what of the ", "where is the ")) + rng.choice(THINGS)
    said = "".join(answer(rng) for _ in range(int(rng.integers(1, 4))))
    tokens = [USER, *question.encode(), ASSISTANT, *said.strip().encode(), EOS]
    return (tokens + [EOS] * ROWS)[:ROWS]
