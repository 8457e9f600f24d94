"""Mixed forms: harm is measured where it is, and bytes go where they save most of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from edgespec.errors import ExportError, UsageError
from edgespec.export.checkpoint import open_checkpoint
from edgespec.export.quantise import dequantise, quantise
from edgespec.export.quantise.mixed import Allotment, allot, bytes_of, candidates, describe
from edgespec.export.quantise.sensitivity import Sensitivity, sensitivities
from edgespec.export.recipe import Scheme
from edgespec.export.trace.model import build_empty
from tests.export.conftest import export
from tests.helpers.checkpoints import make_checkpoint

SHAPE = (100, 128)
SMALL, FINE, LARGE = Scheme(4, 128), Scheme(4, 32), Scheme(8, 128)
TEXT = torch.randint(0, 256, (16, 32), generator=torch.Generator().manual_seed(0))


def group(name: str, harm: float) -> Sensitivity:
    return Sensitivity((name,), (SHAPE,), {SMALL: harm, FINE: harm / 2, LARGE: harm / 256})


def test_bytes_count_what_fills_up_the_last_block() -> None:
    """576 columns are five blocks of 128, so blocks of 64 are smaller there."""
    assert bytes_of(Scheme(4, 128), (2, 576)) == 2 * (5 * 64 + 5 * 4 + 3)
    assert bytes_of(Scheme(4, 64), (2, 576)) == 2 * (9 * 32 + 9 * 4 + 5)
    assert bytes_of(Scheme(8, 64), (2, 576)) == 2 * (9 * 64 + 9 * 4 + 9)
    assert candidates(64) == (Scheme(4, 64), Scheme(4, 32), Scheme(8, 64), Scheme(8, 32))
    assert candidates(16) == (Scheme(4, 16), Scheme(8, 16))


def test_the_worst_is_upgraded_first_and_the_budget_holds() -> None:
    found = [group("a", 0.1), group("b", 0.001), group("c", 0.01)]
    smallest = 3 * bytes_of(SMALL, SHAPE)
    assert set(allot(found, smallest).schemes) == {SMALL}
    one_large = smallest + bytes_of(LARGE, SHAPE) - bytes_of(SMALL, SHAPE)
    assert allot(found, one_large).schemes == (LARGE, SMALL, SMALL)
    for budget in (one_large, int(smallest * 1.1), int(smallest * 1.5), 10**9):
        assert allot(found, budget).size <= budget
    assert allot(found, 10**9).schemes == (LARGE, LARGE, LARGE)
    assert allot(found).size <= 1.1 * smallest
    with pytest.raises(UsageError, match=f"smallest forms take {smallest}"):
        allot(found, smallest - 1)


def test_bytes_are_spent_until_the_harm_is_small_enough_and_no_longer() -> None:
    found = [group("a", 0.1), group("b", 0.001), group("c", 0.01)]
    sizes = []
    for harm in (1.0, 0.05, 0.002, 0.0008):
        allotment = allot(found, harm=harm)
        assert allotment.harm <= harm
        sizes.append(allotment.size)
    assert sizes == sorted(set(sizes))
    assert sizes[0] == 3 * bytes_of(SMALL, SHAPE)
    assert allot(found, size=sizes[1], harm=1e-9).size <= sizes[1]


def test_a_plan_names_what_is_not_as_most_are() -> None:
    found = (group("model.layers.0.mlp.up_proj.weight", 0.1), group("model.layers.1.mlp.up_proj.weight", 0.2), group("lm_head.weight", 0.3))
    allotment = Allotment(found, (SMALL, SMALL, LARGE))
    assert allotment.plan.default == SMALL
    assert allotment.plan.exceptions == (("lm_head.weight", LARGE),)
    lines = describe(allotment).splitlines()
    assert [line.split("  ")[-1] for line in lines[1:]] == [
        "mlp.up_proj: 2 at 4 x 128",
        "lm_head: 1 at 8 x 128",
        "together, as estimated",
    ]


def measured(checkpoint: Path, schemes: tuple[Scheme, ...]) -> list[Sensitivity]:
    opened = open_checkpoint(str(checkpoint))
    opened.bind(build_empty(opened.config_copy()))
    return sensitivities(opened, opened.config_copy(), TEXT, schemes)


@pytest.mark.parametrize(("architecture", "tied"), [("llama", True), ("llama", False), ("gemma3_text", True)])
def test_the_estimate_is_the_kl(architecture: str, tied: bool, tmp_path: Path) -> None:
    """Of all matrices together, each of them quantised for real; Gemma scales its embeddings. One draw of tokens and a sample of
    rows: within a quarter either way."""
    checkpoint = make_checkpoint(tmp_path / "checkpoint", architecture, tie_word_embeddings=tied)
    scheme = Scheme(4, 32)
    found = measured(checkpoint, (scheme,))
    names = {name for one in found for name in one.names}
    model = AutoModelForCausalLM.from_pretrained(checkpoint, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        wanted = model(TEXT).logits.log_softmax(-1)
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                assert name in names
                parameter.copy_(dequantise(quantise(parameter.clone(), scheme)))
        kl = float((wanted.exp() * (wanted - model(TEXT).logits.log_softmax(-1))).sum(-1).mean())
    assert kl / 1.25 < sum(one.harm[scheme] for one in found) < kl * 1.25


def test_harm_is_measured_for_every_group(llama: Path) -> None:
    """Attention's two inputs and the MLP's two in each of three layers, and the head; 8 bits have a 256th of the error of 4."""
    found = measured(llama, candidates(32))
    assert sorted(len(one.names) for one in found) == sorted([3, 1, 2, 1] * 3 + [1])
    assert found[-1].names == ("model.embed_tokens.weight",)
    for one in found:
        assert 0 < one.harm[Scheme(8, 32)] < one.harm[Scheme(4, 32)] / 20


def test_a_mixed_export_lists_its_tensors(llama: Path, tmp_path: Path) -> None:
    target = export(llama, tmp_path / "bundle", weights="mixed", target_size=80_000).manifest.target
    assert target.quantisation.method == "gptq"
    assert target.quantisation.tensors
    assert {(form.bits, form.block_size) for form in target.quantisation.tensors.values()} == {(8, 32)}


def test_a_smaller_kl_takes_more_bytes(llama: Path, tmp_path: Path) -> None:
    found = {}
    for kl in (0.1, 0.001):
        report = export(llama, tmp_path / f"bundle{kl}", weights="mixed", block_size=64, max_kl=kl)
        assert report.manifest.target.fidelity
        assert report.manifest.target.fidelity.kl <= kl
        found[kl] = report.sizes["weights.bin"]
    assert found[0.1] < found[0.001]
    with pytest.raises(ExportError, match="--max-kl"):
        export(llama, tmp_path / "bundle", weights="mixed", max_kl=1e-9)
