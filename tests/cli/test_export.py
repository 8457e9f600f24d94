"""``edgespec export`` and ``optimum-cli export edgespec``: the options reach the exporter, and wrong ones stop before it."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from edgespec.cli import export as command
from tests.cli.conftest import Run, assert_one_line_error

# Not "optimum": our own registration file makes that namespace exist wherever edgespec is installed.
pytest.importorskip("optimum.commands.base")
pytest.importorskip("torch")


def test_options_become_the_configuration() -> None:
    words = [
        "model",
        "-o",
        "out",
        "--draft",
        "layers:3",
        "--weights",
        "int4",
        "--block-size",
        "64",
        "--max-kl",
        "0.5",
        "--force",
        "--quiet",
    ]
    with command.export.make_context("export", words) as context:
        config = command.make_config(context.params)
    assert (config.target, config.output, config.draft, config.weights) == ("model", Path("out"), "layers:3", "int4")
    assert (config.block_size, config.max_kl, config.force, config.quiet) == (64, 0.5, True, True)
    assert (config.context, config.max_width, config.draft_weights, config.trust_remote_code) == (None, 16, None, False)


def test_several_drafts() -> None:
    words = ["model", "-o", "out", "--draft", "layers:3", "--draft", "other"]
    with command.export.make_context("export", words) as context:
        assert command.make_config(context.params).drafts == ("layers:3", "other")


def test_defaults_are_the_configurations_own() -> None:
    """The command line and Python give the same export for the same request."""
    from edgespec.export.config import ExportConfig

    with command.export.make_context("export", ["model", "-o", "out"]) as context:
        assert command.make_config(context.params) == ExportConfig(target="model", output=Path("out"))


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--block-size", "33"], "--block-size: 33"),
        (["--context", "0"], "--context: 0"),
        (["--max-width", "1"], "--max-width: 1"),
        (["--max-kl", "0"], "--max-kl: 0"),
        (["--draft", "layers:none"], "needs a number of layers"),
        (["--draft-weights", "int2"], "'int2' is not one of"),
    ],
)
def test_values_out_of_range_are_one_line(edgespec: Run, tmp_path: Path, words: list[str], part: str) -> None:
    assert_one_line_error(edgespec("export", "model", "-o", tmp_path / "b", *words), part)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def optimum_command() -> Any:
    """The registration file, loaded from where it lies in the repository."""
    path = Path(__file__).resolve().parents[2] / "optimum_register" / "register_edgespec.py"
    spec = importlib.util.spec_from_file_location("register_edgespec", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parsed(module: Any, words: list[str]) -> Any:
    """The command as optimum-cli would make it for ``words``."""
    (kind, _), *_ = module.REGISTER_COMMANDS
    parser = argparse.ArgumentParser()
    subparsers = parser.add_subparsers()
    kind(subparsers)
    args = parser.parse_args(["edgespec", *words])
    return args.func(args)


def test_optimums_command_takes_the_same_options(optimum_command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["model", "-o", "out", "--draft", "layers:3", "--draft", "other", "--block-size", "64", "--max-kl", "0.5", "--force"]
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(optimum_command, "run_export", seen.append)
    parsed(optimum_command, words).run()
    with command.export.make_context("export", words) as context:
        assert seen == [context.params]


def test_optimums_command_reports_errors_in_one_line(optimum_command: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as caught:
        parsed(optimum_command, ["model", "-o", str(tmp_path / "b"), "--block-size", "many"]).run()
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert (
        err
        == "edgespec: error: Invalid value for '--block-size': 'many' is not a valid integer. (see: optimum-cli export edgespec --help)\n"
    )
