"""``edgespec inspect``: what a bundle holds, from its manifest alone. Loads no model."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import click

from edgespec.bundle import open_bundle
from edgespec.cli.bundle_argument import BUNDLE
from edgespec.cli.output import facts, fidelity_facts, human_bytes, indent, print_json, printable, table
from edgespec.manifest import DrafterSpec, KvLayer, Manifest, ModelSpec, Quantisation


@click.command(short_help="Show what a bundle holds.")
@click.argument("bundle", type=BUNDLE)
@click.option("--json", "as_json", is_flag=True, help="Print the manifest with the bundle's total size as one JSON object.")
def inspect(bundle: Path, as_json: bool) -> None:
    """Show what BUNDLE holds, after checking its manifest and that its files are there in full size."""
    manifest = open_bundle(bundle)
    if as_json:
        print_json({**json.loads(manifest.to_json()), "total_bytes": total_bytes(manifest)})
        return
    click.echo(printable(describe(bundle, manifest)))


def total_bytes(manifest: Manifest) -> int:
    """Size of all files of the bundle, the manifest apart."""
    return sum(file.size for file in manifest.files)


def describe(bundle: Path, manifest: Manifest) -> str:
    """The manifest for a person, in sections."""
    tokenizer = manifest.tokenizer
    head = facts(
        [
            ("bundle", str(bundle)),
            ("format", f"{manifest.format_version}, written by {manifest.created_by}"),
            ("size", human_bytes(total_bytes(manifest))),
            ("tokenizer", f"{tokenizer.vocab_size} tokens, {'chat template' if tokenizer.chat_template else 'no chat template'}"),
            ("drafters", ", ".join(map(drafter_text, manifest.drafters)) or "none"),
            ("exactness", exactness_text(manifest)),
        ]
    )
    models = [f"{name}\n{indent(facts(model_facts(model)))}" for name, model in manifest.models.items()]
    files = table([(file.name, human_bytes(file.size), file.sha256[:12]) for file in manifest.files], ("file", "size", "sha256"))
    return "\n\n".join([head, *models, files])


def model_facts(model: ModelSpec) -> list[tuple[str, str]]:
    """One model's facts, those that are unknown left out."""
    source = model.source
    origin = source.checkpoint + (f" at {source.revision}" if source.revision else "") + (f" ({source.derived})" if source.derived else "")
    pairs = [
        ("source", origin),
        ("licence", source.licence or "not stated by the checkpoint"),
        ("architecture", f"{model.architecture}, hidden size {model.hidden_size}, vocabulary {model.vocab_size}"),
        ("weights", quantisation_text(model.quantisation)),
        ("KV cache", f"{kv_text(model.layers)}, {model.kv_dtype}, at most {model.capacity} tokens" if model.layers else "none"),
        ("widest pass", f"{model.max_width} tokens"),
    ]
    pairs += [("profiles", ", ".join(["cpu", *(model.variants or {}), *(model.profiles or {})]))] if model.layers else []
    pairs += head_facts(model)
    if model.fidelity:
        pairs += fidelity_facts(model.fidelity)
    for name, static in (model.profiles or {}).items():
        if static.fidelity:
            pairs.append((f"{name} profile", f"in whole numbers, KL {static.fidelity.kl:.2g} nats against the usual graph"))
    for kind, form in (model.kv_forms or {}).items():
        measured = fidelity_facts(form.fidelity)[0][1] if form.fidelity else "not measured"
        pairs.append((f"with {kind} KV", measured))
    if model.pass_ms:
        pairs.append(("pass cost", ", ".join(f"{width}: {cost:.2f} ms" for width, cost in model.pass_ms.items())))
    return pairs


def head_facts(model: ModelSpec) -> list[tuple[str, str]]:
    """What a target gives to heads, or what a head reads and how often it has been right."""
    pairs = []
    if model.taps:
        pairs.append(("gives to heads", ", ".join(f"{tap.name} ({tap.width})" for tap in model.taps)))
    if model.reads:
        pairs.append(("reads", ", ".join(model.reads)))
    if model.fused:
        pairs.append(("first step", f"also in the target's pass ({model.fused})"))
    if model.token_ids:
        pairs.append(("scores", f"{model.vocab_size} of the target's tokens"))
    if model.accuracy:
        shares = ", ".join(f"{ranks[0]:.0%}" for ranks in model.accuracy)
        pairs.append(("first token right", f"{shares} (on text that the target wrote)"))
    return pairs


def quantisation_text(quantisation: Quantisation) -> str:
    if quantisation.method == "none":
        return "float"
    block = f", blocks of {quantisation.block_size}" if quantisation.block_size else ""
    block += ", symmetric" if quantisation.symmetric else ""
    others = f", {len(quantisation.tensors)} tensors otherwise" if quantisation.tensors else ""
    return f"{quantisation.bits} bits{block} ({quantisation.method}){others}"


def kv_text(layers: tuple[KvLayer, ...]) -> str:
    """Layers grouped by shape, since models mix them: ``26 layers of 1 x 256 with window 512, 4 layers of 1 x 256``."""
    parts = []
    for layer, count in Counter(layers).items():
        size = str(layer.key_dim) if layer.key_dim == layer.value_dim else f"{layer.key_dim}/{layer.value_dim}"
        window = f" with window {layer.window}" if layer.window else ""
        parts.append(f"{count} layer{'s' if count > 1 else ''} of {layer.heads} x {size}{window}")
    return ", ".join(parts)


def drafter_text(drafter: DrafterSpec) -> str:
    return f"{drafter.kind} (model {drafter.model})" if drafter.model else drafter.kind


def exactness_text(manifest: Manifest) -> str:
    exactness = manifest.exactness
    if exactness is None:
        return "not measured at export; the runtime tests it on this machine"
    widths = ", ".join(map(str, exactness.widths))
    return f"{exactness.grade} for widths {widths} (on {exactness.machine}, ONNX Runtime {exactness.onnxruntime})"
