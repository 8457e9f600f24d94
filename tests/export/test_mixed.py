"""Mixed forms: harm is measured where it is, and bytes go where they save most of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from edgespec.errors import UsageError
from edgespec.export.checkpoint import open_checkpoint
from edgespec.export.quantise.mixed import Sensitivity, allot, bytes_of, candidates, sensitivities
from edgespec.export.recipe import Scheme
from edgespec.export.trace.model import build_empty
from tests.export.conftest import export

SMALL, FINE, LARGE = candidates(128)


def group(name: str, harm: float, weights: int = 10_000) -> Sensitivity:
    return Sensitivity((name,), weights, {SMALL: harm, FINE: harm / 2, LARGE: harm / 256})


def test_the_worst_is_upgraded_first_and_the_budget_holds() -> None:
    found = [group("a", 0.1), group("b", 0.001), group("c", 0.01)]
    smallest = sum(bytes_of(SMALL, one.weights) for one in found)
    assert allot(found, 128, int(smallest) + 1).exceptions == ()
    one_large = int(smallest + bytes_of(LARGE, 10_000) - bytes_of(SMALL, 10_000)) + 1
    assert allot(found, 128, one_large).scheme("a") in (FINE, LARGE)
    for budget in (one_large, int(smallest * 1.1), int(smallest * 1.5), 10**9):
        plan = allot(found, 128, budget)
        schemes = [plan.scheme(one.names[0]) for one in found]
        assert sum(bytes_of(scheme, 10_000) for scheme in schemes if scheme) <= budget
    assert {plan.scheme(name) for name in "abc"} == {LARGE}
    with pytest.raises(UsageError, match="too few"):
        allot(found, 128, int(smallest) - 1)


def test_harm_is_measured_for_every_group(llama: Path) -> None:
    """Attention's two inputs and the MLP's two in each of three layers, and the head; 8 bits have a 256th of the error of 4."""
    checkpoint = open_checkpoint(str(llama))
    checkpoint.bind(build_empty(checkpoint.config_copy()))
    ids = torch.randint(0, 256, (256,), generator=torch.Generator().manual_seed(0)).tolist()
    found = sensitivities(checkpoint, checkpoint.config_copy(), ids, 32)
    assert [len(one.names) for one in found] == [3, 1, 2, 1] * 3 + [1]
    assert found[-1].names == ("model.embed_tokens.weight",)
    for one in found:
        assert 0 < one.harm[Scheme(8, 32)] < one.harm[Scheme(4, 32)] / 20


def test_a_mixed_export_lists_its_tensors(llama: Path, tmp_path: Path) -> None:
    target = export(llama, tmp_path / "bundle", weights="mixed", target_size=80_000).manifest.target
    assert target.quantisation.method == "gptq"
    assert target.quantisation.tensors
    assert {(form.bits, form.block_size) for form in target.quantisation.tensors.values()} == {(8, 32)}
