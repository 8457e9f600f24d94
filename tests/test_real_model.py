"""The real model, end to end: SmolLM2-135M-Instruct, fetched once (93 MB) unless EDGESPEC_TEST_GGUF names the file."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
import torch
from transformers import AutoModelForCausalLM, GgufConfig

import edgespec
from edgespec.cli.checkpoint import fetch_gguf
from edgespec.cli.quickstart import HEAD
from edgespec.export import ExportConfig, ExportReport, export_bundle
from edgespec.export.checkpoint import open_checkpoint
from edgespec.export.trace.model import build_empty
from edgespec.runtime.text.bpe import BpeTokenizer
from edgespec.runtime.verify import verify
from tests.helpers.tokenizers import corpus, random_text

pytestmark = pytest.mark.slow

PROMPTS = (
    "List three uses of a paperclip.",
    "Why is the sky blue?",
    "Write a haiku about the sea.",
    "Write a Python function that adds two numbers, and an example of its use.",
    "Translate into German: The cat sits on the mat.",
    "What is 17 times 23? Show the steps.",
    "Repeat this three times: red, green, blue.",
    "Name the planets of the solar system in order.",
    "Explain photosynthesis to a child.",
    "Write an email to a colleague to move a meeting from Monday to Thursday.",
    "What is the capital of Australia?",
    "Give me a recipe for pancakes as a numbered list.",
    "Summarise: The ferry was late because of fog, so the band missed the concert, and the audience went home.",
    "Count from one to twenty.",
    "Write a limerick about a dog from Prague.",
    "What are the advantages and the disadvantages of working from home?",
    "Continue the list: apple, banana, cherry,",
    "Correct the spelling: I has went too the libary yesturday.",
    "Write a JSON object with the name, age and city of a person.",
    "Tell me a story that begins with: It was already dark.",
)


@pytest.fixture(scope="module")
def gguf() -> Path:
    named = os.environ.get("EDGESPEC_TEST_GGUF")
    return Path(named) if named else fetch_gguf()


@pytest.fixture(scope="module", params=["int8", "int4"])
def bundle(request: pytest.FixtureRequest, gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> ExportReport:
    output = tmp_path_factory.mktemp("real") / request.param
    config = ExportConfig(str(gguf), output, draft="layers:4", eagle=str(HEAD), weights=request.param, context=1024, quiet=True)
    return export_bundle(config)


def test_every_drafter_writes_the_text_of_plain_decoding(bundle: ExportReport) -> None:
    with edgespec.load(bundle.output) as engine:
        assert engine.exactness.grade == "exact"
        for prompt in PROMPTS:
            plain, *others = (
                engine.generate(prompt, drafter=drafter, draft_length=length, max_new_tokens=64).token_ids
                for drafter, length in (
                    ("none", "auto"),
                    ("ngram", "auto"),
                    ("ngram", 7),
                    ("draft", 3),
                    ("tree", 6),
                    ("tree", 15),
                    ("ngram,tree", "auto"),
                    ("lookahead", 12),
                    ("eagle", 1),
                    ("eagle", 3),
                    ("ngram,eagle", "auto"),
                    ("auto", "auto"),
                )
            )
            assert all(other == plain for other in others), prompt


def test_the_tokenizer_in_plain_python_gives_the_same_ids(bundle: ExportReport) -> None:
    path, rng = bundle.output / bundle.manifest.tokenizer.file, random.Random(3)
    theirs, ours = tokenizers.Tokenizer.from_file(str(path)), BpeTokenizer.open(path)
    for text in [*rng.sample(corpus(), 1000), *(random_text(rng) for _ in range(2000)), "".join(corpus())]:
        ids = list(theirs.encode(text, add_special_tokens=False).ids)
        assert ours.encode(text) == ids, repr(text)
        assert ours.decode(ids) == theirs.decode(ids)


def test_the_bundle_verifies(bundle: ExportReport) -> None:
    with edgespec.load(bundle.output) as engine:
        assert verify(engine).ok


def test_export_stays_within_its_memory(bundle: ExportReport) -> None:
    # The peak is of this process, which has run torch on the whole of both exports by now.
    assert bundle.peak_rss_bytes < 2.2e9
    assert sum(bundle.sizes.values()) < {8: 170e6, 4: 100e6}[bundle.manifest.target.quantisation.bits]


def test_a_memory_budget_holds(bundle: ExportReport) -> None:
    """In a process of its own: peak memory stays below the budget, self-test, prefill and drafts included."""
    budget = {8: 520, 4: 360}[bundle.manifest.target.quantisation.bits]
    command = [sys.executable, "-m", "edgespec", "run", str(bundle.output), PROMPTS[0] * 20, "--memory-budget", f"{budget}MB", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["peak_rss_bytes"] < budget * 1e6


def test_tensors_equal_what_transformers_loads(gguf: Path) -> None:
    options = {"gguf_file": gguf.name, "quantization_config": GgufConfig(dequantize=True), "dtype": torch.float32}
    whole = AutoModelForCausalLM.from_pretrained(gguf.parent, **options).state_dict()
    checkpoint = open_checkpoint(str(gguf))
    checkpoint.bind(build_empty(checkpoint.config_copy()))
    assert set(whole) - set(checkpoint) == {"lm_head.weight"}  # tied: stored once
    for name in checkpoint:
        assert torch.equal(checkpoint[name], whole[name]), name
