"""Processors against those of transformers, whose names the options have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgespec.runtime.options import GenerationOptions
from edgespec.runtime.sampling.processors import Text
from edgespec.runtime.sampling.sampling import make_sampler, make_shape

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")
process = pytest.importorskip("transformers.generation.logits_process")

PROMPT, WRITTEN = [3, 5, 7, 5, 9], [11, 5, 3, 5]


def theirs(options: dict[str, Any], row: np.ndarray) -> np.ndarray:
    """Probabilities [V] after the processors that transformers makes of ``options``, in its order."""
    ids, scores = torch.tensor([PROMPT + WRITTEN]), torch.tensor(row)[None]
    makers = {
        "repetition_penalty": process.RepetitionPenaltyLogitsProcessor,
        "no_repeat_ngram_size": process.NoRepeatNGramLogitsProcessor,
        "temperature": process.TemperatureLogitsWarper,
        "top_k": process.TopKLogitsWarper,
        "top_p": process.TopPLogitsWarper,
        "min_p": process.MinPLogitsWarper,
        "typical_p": process.TypicalLogitsWarper,
    }
    for name, maker in makers.items():
        if name in options:
            scores = maker(options[name])(ids, scores)
    return torch.softmax(scores.double(), -1)[0].numpy()


@pytest.mark.parametrize("size", [50, 20_000])
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.6},
        {"top_k": 7},
        {"top_p": 0.85},
        {"min_p": 0.07},
        {"typical_p": 0.6},
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 0.8},
        {"no_repeat_ngram_size": 2},
        {"no_repeat_ngram_size": 3},
        {
            "repetition_penalty": 1.2,
            "no_repeat_ngram_size": 3,
            "temperature": 1.4,
            "top_k": 30,
            "top_p": 0.9,
            "min_p": 0.02,
            "typical_p": 0.9,
        },
    ],
    ids=str,
)
def test_the_same_distribution(options: dict[str, Any], size: int) -> None:
    for seed in range(5):
        row = np.random.default_rng(seed).normal(scale=3, size=size).astype(np.float32)
        settings = GenerationOptions(do_sample=True, **options)
        sampler = make_sampler(settings, prompt_length=len(PROMPT))
        found = make_shape(settings)(sampler._edited(row, Text([*PROMPT, *WRITTEN[:2]], WRITTEN[2:])))
        whole = np.zeros(size)
        whole[found.tokens] = found.weights
        np.testing.assert_allclose(whole, theirs(options, row), atol=2e-6)
