"""``edgespec export``: checkpoint in, bundle out. The work is in edgespec.export; here are its options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgespec.cli.options import numbers
from edgespec.cli.output import facts, fidelity_facts, human_bytes
from edgespec.errors import UsageError

if TYPE_CHECKING:
    from edgespec.export.config import ExportConfig

WEIGHTS = click.Choice(["int4", "int8", "mixed", "keep", "fp32"])
METHODS = click.Choice(["gptq", "search", "rtn"])
PROFILES = click.Choice(["cpu", "cuda", "webgpu", "npu"])
EXTRAS_HINT = "exporting needs more packages than running: pip install 'edgespec[export]'"


def kv_types(_context: click.Context, _param: click.Parameter, value: str) -> tuple[str, ...]:
    """Names between commas; which ones there are is the exporter's to check."""
    return tuple(value.replace(" ", "").split(","))


@click.command(short_help="Turn a checkpoint and a draft into a bundle.")
@click.argument("target")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder to make for the bundle.")
@click.option(
    "--draft",
    multiple=True,
    metavar="MODEL",
    help="Draft model: like TARGET, also with another tokenizer; layers:N for the target's own first N layers, or self with other "
    "--draft-weights. Of several one tree is drafted.",
)
@click.option("--medusa", help="Medusa heads for TARGET: a model id on the Hub or a folder.")
@click.option("--eagle", help="An EAGLE-1, -2 or -3 head for TARGET: a model id on the Hub or a folder.")
@click.option("--weights", type=WEIGHTS, default="int8", show_default=True, help="How the target's weights are stored.")
@click.option("--draft-weights", type=WEIGHTS, help="How the draft's weights are stored; as the target's unless given.")
@click.option("--block-size", type=int, default=32, show_default=True, help="Weights that share a scale, at most with --weights mixed.")
@click.option("--symmetric", is_flag=True, help="Weights of int4 or int8 without zero points: quicker passes, farther from the original.")
@click.option("--method", type=METHODS, help="How weights are rounded; gptq for 4 bits and search for 8 unless given.")
@click.option("--calibration", type=click.Path(path_type=Path), help="Text file for gptq; the project's own text unless given.")
@click.option("--target-size", type=int, help="With --weights mixed: bytes that the target's weights may take.")
@click.option("--context", type=int, help="Largest number of tokens in the KV cache; the model's, at most 4096, unless given.")
@click.option(
    "--kv",
    metavar="TYPE[,TYPE]",
    callback=kv_types,
    default="float32",
    show_default=True,
    help="KV caches of float32, int8 or int4; of several the first is used unless another is asked for when it is run.",
)
@click.option("--max-width", type=int, default=16, show_default=True, help="Most new tokens in a verification pass.")
@click.option("--profile", "profiles", multiple=True, type=PROFILES, help="Graphs to add for other providers; several are fine.")
@click.option(
    "--npu-widths",
    callback=numbers("are not numbers between commas, such as 1,5,64"),
    default="1,5,64",
    show_default=True,
    help="With --profile npu: tokens of a pass of plain decoding, of verification (K + 1), and of a chunk of the prompt.",
)
@click.option(
    "--npu-activations",
    type=click.Choice(["float", "int16"]),
    default="float",
    show_default=True,
    help="With --profile npu: what its graphs compute with. int16 is for chips without floats, and needs quantised weights.",
)
@click.option(
    "--max-kl",
    type=float,
    help="Fail if an exported model (target or draft) diverges more than this from the original, in nats; --weights mixed chooses by it.",
)
@click.option("--ort-format", is_flag=True, help="Write graphs in ONNX Runtime's own format, for minimal builds of it.")
@click.option("--revision", help="Branch, tag or commit of a target on the Hub.")
@click.option("--draft-revision", help="The same of a draft on the Hub.")
@click.option("--trust-remote-code", is_flag=True, help="Run Python code that comes with the checkpoint. Only if you trust its author.")
@click.option("--push-to-hub", metavar="OWNER/NAME", help="Publish the bundle on the Hub when it is done.")
@click.option("--force", is_flag=True, help="Replace OUTPUT if it is a bundle already.")
@click.option("--quiet", is_flag=True, help="No progress bars and no summary.")
def export(**options: Any) -> None:
    """Turn TARGET, and a draft or draft heads if any are given, into a bundle.

    TARGET is a model id on the Hugging Face Hub, a local checkpoint folder, or a .gguf file.
    """
    run_export(options)


def run_export(options: dict[str, Any]) -> None:
    """Export with ``options`` named like the fields of ExportConfig, and print a summary."""
    repository = options.get("push_to_hub")
    config = make_config(options)
    from edgespec.export import export_bundle

    report = export_bundle(config)
    if repository is not None:
        from edgespec.hub import push_bundle

        click.echo(push_bundle(config.output, repository), err=config.quiet)
    if config.quiet:
        return
    manifest = report.manifest
    lines = [
        ("bundle", str(config.output)),
        ("models", ", ".join(f"{name} ({model.architecture})" for name, model in manifest.models.items())),
        ("size", human_bytes(sum(file.size for file in manifest.files))),
        ("took", f"{report.seconds:.0f} s, at most {human_bytes(report.peak_rss_bytes)} of memory"),
    ]
    if manifest.target.fidelity:
        lines[3:3] = fidelity_facts(manifest.target.fidelity)
    click.echo(facts(lines), err=True)
    click.echo(f"next: edgespec run {config.output} 'Hello'", err=True)


def make_config(options: dict[str, Any]) -> ExportConfig:
    """The frozen configuration of the exporter.

    Raises:
        UsageError: the exporter's libraries are not installed. Says what to install.
    """
    need_export_extras()
    from edgespec.export.config import ExportConfig

    given = {name: value for name, value in options.items() if name != "push_to_hub"}
    drafts = tuple(given.pop("draft", None) or ())
    return ExportConfig(**given, draft=drafts if len(drafts) > 1 else next(iter(drafts), None))


def need_export_extras() -> None:
    """Refuse by name before any work when a library of the exporter is missing; none of them is imported to find out."""
    names = ("torch", "transformers", "optimum", "onnx", "onnxscript", "onnx_ir", "safetensors", "gguf")
    missing = [name for name in names if not is_installed(name)]
    if missing:
        raise UsageError(f"{', '.join(missing)} not installed; {EXTRAS_HINT}")


def is_installed(name: str) -> bool:
    """Whether ``import name`` would find a library."""
    from importlib.util import find_spec

    # The namespace `optimum` exists wherever edgespec is installed, because of our own file in it.
    module = "optimum.exporters" if name == "optimum" else name
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
