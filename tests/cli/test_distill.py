"""``edgespec distill``: options reach the distillation, and wrong ones stop before it."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from edgespec.cli import distill as command
from tests.cli.conftest import Run, assert_one_line_error

pytest.importorskip("torch")


def test_layers_are_read() -> None:
    with command.distill.make_context("distill", ["model", "-o", "out", "--taps", "2,15,27", "--text", "a", "--text", "b"]) as context:
        assert context.params["taps"] == (2, 15, 27)
        assert context.params["texts"] == (Path("a"), Path("b"))
    with pytest.raises(click.BadParameter, match="list of layers"):
        command.distill.make_context("distill", ["model", "-o", "out", "--taps", "2;15"])


def test_defaults_are_those_of_the_configuration() -> None:
    """A default that is said twice must be the same twice."""
    from edgespec.export.distill import DistillConfig

    with command.distill.make_context("distill", ["model", "-o", "out"]) as context:
        options = {name: value for name, value in context.params.items() if name != "as_json"}
    assert DistillConfig(**options) == DistillConfig(target="model", output=Path("out"))


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--kind", "other"], "eagle, medusa, lm"),
        (["--minutes", "5", "--tokens", "10"], "exclude each other"),
        (["--precision", "fp8"], "auto, fp32, bf16"),
        (["--slots", "0"], "--slots: 0 is less than 1"),
        (["--seed", "-1"], "--seed: -1 is less than 0"),
        (["--learning-rate", "-0.001"], "--learning-rate: -0.001 is less than"),
        (["--weight-decay", "-1"], "--weight-decay: -1.0 is less than 0"),
        (["--block-size", "24"], "--block-size: 24 is not one of"),
        (["--prompts", "nowhere.txt"], "nowhere.txt"),
        ([], "no such"),
    ],
)
def test_wrong_options_stop_before_any_work(edgespec: Run, tmp_path: Path, words: list[str], part: str) -> None:
    outcome = edgespec("distill", tmp_path / "nowhere", "-o", tmp_path / "draft", *words)
    assert_one_line_error(outcome, part)
    assert not (tmp_path / "draft").exists()
    assert not (tmp_path / "draft.work").exists()
