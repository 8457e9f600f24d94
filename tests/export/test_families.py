"""Every family, from a random checkpoint through the whole export, against torch loaded by transformers itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from edgespec.manifest import read_manifest
from edgespec.runtime.model import Model
from edgespec.runtime.session import DEFAULT_PROVIDERS
from tests.export.conftest import export
from tests.helpers.checkpoints import CAPACITY, FAMILIES, make_checkpoint

TOLERANCE = 1e-4
IDS = np.random.default_rng(0).integers(0, 256, CAPACITY).tolist()


class Reference:
    """Logits of token sequences from the checkpoint as transformers loads it."""

    def __init__(self, checkpoint: Path, layers: int | None = None) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(checkpoint, attn_implementation="eager", dtype=torch.float32).eval()
        if layers is not None:
            self.model.base_model.layers = self.model.base_model.layers[:layers]

    def __call__(self, ids: list[int]) -> np.ndarray:
        with torch.no_grad():
            logits: np.ndarray = self.model(torch.tensor([ids])).logits[0].numpy()
        return logits


def load(bundle: Path, name: str = "target") -> Model:
    spec = read_manifest(bundle).models[name]
    return Model(bundle / spec.graph, spec, capacity=CAPACITY, threads=1, providers=DEFAULT_PROVIDERS)


def distance(found: np.ndarray, wanted: np.ndarray) -> float:
    assert wanted.std() > 0.1, "logits without spread would prove nothing"
    return float(np.abs(found - wanted).max())


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_torch_through_prefill_verification_and_rollback(family: str, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint", family)
    export(checkpoint, tmp_path / "bundle")
    model, reference = load(tmp_path / "bundle"), Reference(checkpoint)
    right = reference(IDS[:60])

    assert distance(model.run(IDS[:30], range(30)), right[:30]) < TOLERANCE
    # A verification pass on the past, of which two tokens are kept ...
    wrong = [*IDS[:32], 7, 8, 9]
    assert distance(model.run(wrong[30:], range(5)), reference(wrong)[30:]) < TOLERANCE
    model.keep(32)
    # ... and then on: one token, several, and only some of the rows.
    assert distance(model.run(IDS[32:33], [0]), right[32:33]) < TOLERANCE
    assert distance(model.run(IDS[33:40], range(7)), right[33:40]) < TOLERANCE
    assert distance(model.run(IDS[40:60], [3, 19]), right[[43, 59]]) < TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tree_with_siblings_equals_its_paths(family: str, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint", family)
    export(checkpoint, tmp_path / "bundle")
    model, reference = load(tmp_path / "bundle"), Reference(checkpoint)
    past = IDS[:20]
    tokens, parents = [11, 12, 13, 14, 15, 16, 17], [-1, 0, 0, 2, 0, 1, 5]
    model.run(past, [0])
    found = model.run(tokens, range(7), parents).copy()
    for node in range(7):
        path, at = [], node
        while at >= 0:
            path.append(tokens[at])
            at = parents[at]
        assert distance(found[node], reference(past + path[::-1])[-1]) < TOLERANCE, f"node {node}"
    # The branch 0, 2, 3 is kept: its rows move together, and the text goes on from there.
    model.keep_path(20, [0, 2, 3])
    wanted = reference([*past, 11, 13, 14, 21, 22])
    assert distance(model.run([21, 22], range(2)), wanted[-2:]) < TOLERANCE


def test_an_early_exit_equals_the_shallow_model(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint", "qwen3")
    export(checkpoint, tmp_path / "bundle", draft="layers:2")
    model, reference = load(tmp_path / "bundle", "draft"), Reference(checkpoint, layers=2)
    assert distance(model.run(IDS[:30], range(30)), reference(IDS[:30])) < TOLERANCE


def test_the_manifest_says_what_each_layer_keeps(tmp_path: Path) -> None:
    export(make_checkpoint(tmp_path / "checkpoint", "gemma3_text"), tmp_path / "bundle")
    target = read_manifest(tmp_path / "bundle").target
    assert [layer.window for layer in target.layers] == [8, None, 8]
    assert {(layer.heads, layer.key_dim, layer.value_dim) for layer in target.layers} == {(2, 16, 16)}
    assert (target.vocab_size, target.capacity, target.max_width) == (288, CAPACITY, 8)
