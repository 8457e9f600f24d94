"""``edgespec compile``: the graphs of fixed shapes of a bundle, compiled ahead of time for an NPU."""

from __future__ import annotations

from pathlib import Path

import click

from edgespec.cli.bundle_argument import BUNDLE
from edgespec.cli.options import provider_options
from edgespec.cli.output import human_bytes


@click.command("compile", short_help="Compile a bundle's graphs for an NPU.")
@click.argument("bundle", type=BUNDLE)
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder to make for the compiled bundle.")
@click.option("--providers", "provider", default="qnn", show_default=True, metavar="NAME", help="The provider to compile for.")
@click.option(
    "--provider-option",
    "options",
    multiple=True,
    callback=provider_options,
    metavar="PROVIDER.KEY=VALUE",
    help="An option of ONNX Runtime for the provider; qnn.soc_model and qnn.htp_arch say for which chip.",
)
@click.option("--shared/--apart", default=True, show_default=True, help="One binary for all graphs of a model, or one for each.")
@click.option("--force", is_flag=True, help="Replace OUTPUT if it is a bundle already.")
def compile_(bundle: Path, output: Path, provider: str, options: dict[str, dict[str, str]], shared: bool, force: bool) -> None:
    """Compile the npu graphs of BUNDLE, for the chip that the provider's options name. The result runs on that provider only."""
    from edgespec.runtime.providers.compiling import compile_bundle

    manifest = compile_bundle(bundle, output, provider, options, shared=shared, force=force)
    sizes = {file.name: file.size for file in manifest.files}
    for name, spec in manifest.models.items():
        for profile in (spec.profiles or {}).values():
            if profile.compiled:
                for context in profile.compiled.contexts:
                    click.echo(f"{name}: {context}, {human_bytes(sizes[context])}")
