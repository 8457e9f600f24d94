"""Makes ``optimum-cli export edgespec`` known to optimum.

The wheel installs this one file into the namespace ``optimum.commands.register``, which optimum-cli scans when it
starts. Nothing heavy is imported until the command runs. The folder must never contain an ``__init__.py``: the
namespace is shared with other packages.
"""

from __future__ import annotations

import argparse
import sys

import click
from optimum.commands.base import BaseOptimumCLICommand, CommandInfo
from optimum.commands.export.base import ExportCommand

from edgespec.cli.app import guarded
from edgespec.cli.export import export, run_export


class EdgespecExportCommand(BaseOptimumCLICommand):  # type: ignore[misc]
    """The same export as ``edgespec export``, with its options: they are read from that command, so the two cannot drift apart."""

    COMMAND = CommandInfo(name="edgespec", help="Export a decoder, with a draft, as an edgespec bundle of ONNX graphs.")

    @staticmethod
    def parse_args(parser: argparse.ArgumentParser) -> None:
        parser.description = export.help
        for param in export.params:
            add_argument(parser, param)

    def run(self) -> None:
        names = {param.name for param in export.params}
        options = {name: value for name, value in vars(self.args).items() if name in names}

        def action() -> int:
            with click.Context(export, info_name="optimum-cli export edgespec") as context:
                # click converts and checks the values, ranges and paths as it would for its own command line.
                converted = {param.name or "": param.process_value(context, options[param.name]) for param in export.params}
            run_export(converted)
            return 0

        code = guarded(action)
        if code:
            sys.exit(code)


def add_argument(parser: argparse.ArgumentParser, param: click.Parameter) -> None:
    """Add click's ``param`` to an argparse parser; the values stay text, since click converts them afterwards."""
    if not isinstance(param, click.Option):
        parser.add_argument(param.name or "", help="Model id on the Hugging Face Hub, local checkpoint folder, or .gguf file.")
        return
    text = (param.help or "").replace("%", "%%")
    if param.is_flag:
        parser.add_argument(*param.opts, dest=param.name, action="store_true", help=text)
    else:
        choices = list(param.type.choices) if isinstance(param.type, click.Choice) else None
        default = param.default if param.show_default else None
        action = "append" if param.multiple else "store"
        parser.add_argument(
            *param.opts, dest=param.name, action=action, choices=choices, required=param.required, default=default, help=text
        )


REGISTER_COMMANDS = [(EdgespecExportCommand, ExportCommand)]
