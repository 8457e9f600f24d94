"""The export from end to end: open, trace, rewrite, write weights, prove, and only then put the bundle in place.

:func:`prepare` does what is slow and does not depend on the draft; :func:`write_bundle` makes one bundle of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import math
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx_ir as ir
from tqdm import tqdm
from transformers import PreTrainedModel

from edgespec import __version__
from edgespec.bundle import describe_file
from edgespec.errors import CapacityError, UsageError
from edgespec.export import ort_format, parity, profile_proof, static_profile, variants
from edgespec.export.checkpoint import Checkpoint, open_checkpoint
from edgespec.export.checkpoint.complete import check_complete, is_untied
from edgespec.export.config import DEFAULT_CONTEXT_LIMIT, SELF, ExportConfig, ExportReport, drafts_of, early_exit_layers
from edgespec.export.corpus import HELD
from edgespec.export.heads import Head, TargetShape, open_heads, taps_of
from edgespec.export.heads.base import Workplace
from edgespec.export.heads.fuse import with_first_step
from edgespec.export.heads.fused_proof import prove_fused
from edgespec.export.heads.proof import SAMPLES, Sample, draft_share_right, write_samples
from edgespec.export.kv_cache import add_kv_forms, check_kv, use_first
from edgespec.export.measure import measure_target
from edgespec.export.passes import Pipeline, StaticSizes, Style, pipeline, static_pipeline
from edgespec.export.passes.base import dialect_nodes, fixed_shape
from edgespec.export.passes.quantise_activations import Ranges
from edgespec.export.quantise.choice import Choice, calibration_ids, choose
from edgespec.export.recipe import Recipe, get_recipe
from edgespec.export.reference import shallow_config
from edgespec.export.standins import dense_experts
from edgespec.export.static_profile import static_sizes, write_graphs, write_integer_graphs
from edgespec.export.stored import Place, StoredWeights
from edgespec.export.tokenizer import Tokenizer
from edgespec.export.trace.angles import fix_angles, steady_length
from edgespec.export.trace.exporting import Traced, trace
from edgespec.export.trace.model import build_empty, matrix_names, tied_names
from edgespec.export.trace.windows import check_windows
from edgespec.export.vocabulary import OtherVocabulary, other_vocabulary
from edgespec.export.weights import WeightFile, count_recipes
from edgespec.manifest import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    DrafterSpec,
    Exactness,
    Fidelity,
    Manifest,
    ModelSpec,
    Source,
    StaticProfile,
    Tap,
    parse_manifest,
)
from edgespec.runtime.memory.measure import peak_rss_bytes, return_freed_memory
from edgespec.runtime.models.features import columns
from edgespec.runtime.models.kv import QUANTISED
from edgespec.runtime.providers.providers import NPU
from edgespec.staging import check_output, staged

WEIGHTS_FILE = "weights.bin"
FREED_BLOCKS = 2**18  # torch's intermediate tensors go back to the system when they are freed, from this size on


@dataclasses.dataclass(frozen=True)
class Decoder:
    """An open checkpoint with its traced graph.

    Attributes:
        capacity: KV rows of its graphs.
        proven: what was measured of its graphs by type of weights and depth, and then by type of KV cache.
        measured: costs and equal widths by type of weights.
        choices: how its weights are quantised by their type.
        vocabulary: a draft's if it is not the target's.
    """

    checkpoint: Checkpoint
    traced: Traced
    capacity: int
    proven: dict[tuple[str, int], dict[str, Fidelity]] = dataclasses.field(default_factory=dict)
    measured: dict[str, tuple[dict[str, float], Exactness]] = dataclasses.field(default_factory=dict)
    choices: dict[str, Choice] = dataclasses.field(default_factory=dict)
    vocabulary: OtherVocabulary | None = None


@dataclasses.dataclass(frozen=True)
class Prepared:
    """What is traced and opened once, for any number of bundles with different drafts."""

    config: ExportConfig
    target: Decoder
    tokenizer: Tokenizer
    started: float
    heads: tuple[Head, ...]


def export_bundle(config: ExportConfig) -> ExportReport:
    """Export a target, and a draft if one is named, into the folder ``config.output``.

    The bundle appears whole or not at all.

    Raises:
        CheckpointError, UnsupportedModelError: the target or the draft cannot be exported.
        UsageError: options that do not fit the models.
        ExportError: the output folder is in use, the disk is full, or the result differs too much from the original.
    """
    check_output(config.output, config.force)
    prepared = prepare(config)
    return write_bundle(prepared, config.output, config.draft)


def prepare(config: ExportConfig) -> Prepared:
    """Open and trace the target."""
    started = time.monotonic()
    return_freed_memory(threshold=FREED_BLOCKS)
    with _step("reading the checkpoint", config.quiet):
        checkpoint = open_checkpoint(config.target, revision=config.revision, trust_remote_code=config.trust_remote_code)
        model = build_empty(checkpoint.config_copy())
        capacity = _capacity(model, config)
        tokenizer = Tokenizer(checkpoint, trust_remote_code=config.trust_remote_code)
        checkpoint.forget_header()
        tokenizer.check_ids(checkpoint.config.get_text_config().vocab_size, HELD)
        model = bound_model(checkpoint, model)
        heads = open_heads(config, target_shape(checkpoint, model))
    return Prepared(config, _decoder(checkpoint, model, "target", capacity, config.quiet), tokenizer, started, heads)


def write_bundle(prepared: Prepared, output: Path, draft: str | tuple[str, ...] | None = None) -> ExportReport:
    """Write one bundle of a prepared target, with its drafts, proven against the original models."""
    config = prepared.config
    check_output(output, config.force)
    drafts = {f"draft{number if number > 1 else ''}": named for number, named in enumerate(drafts_of(draft), 1)}
    opened = {name: (_open_draft(prepared, named), early_exit_layers(named)) for name, named in drafts.items()}
    for decoder in (prepared.target, *(decoder for decoder, _ in opened.values())):
        if set(config.kv) & set(QUANTISED):
            check_kv(decoder.traced.model.graph)
        variants.check(decoder.traced.model, config.profiles)
        if NPU in config.profiles:
            static_profile.check(decoder.traced.model, config.npu_widths, decoder.capacity, config.has_integer_graphs)
    with staged(output, config.force) as folder:
        manifest = _fill(folder, prepared, opened)
        (folder / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
    sizes = {entry.name: entry.size for entry in manifest.files} | {MANIFEST_NAME: (output / MANIFEST_NAME).stat().st_size}
    return ExportReport(manifest, output, time.monotonic() - prepared.started, peak_rss_bytes(), sizes)


def _fill(folder: Path, prepared: Prepared, drafts: dict[str, tuple[Decoder, int | None]]) -> Manifest:
    """``drafts`` are decoders, and for an early exit how many of their layers there are, by their names in the bundle."""
    config = prepared.config
    models: dict[str, ModelSpec] = {}
    stored: dict[str, StoredWeights] = {}
    drafters = [DrafterSpec("ngram")]
    tokenizer = prepared.tokenizer.save(folder)
    with WeightFile(folder / WEIGHTS_FILE) as weights:
        models["target"], stored["target"] = _write_model("target", folder, weights, prepared, prepared.target, None)
        for name, (decoder, layers) in drafts.items():
            models[name], stored[name] = _write_model(name, folder, weights, prepared, decoder, layers)
            drafters.append(DrafterSpec("universal" if decoder.vocabulary else "draft", model=name))
        for head in prepared.heads:
            models[head.kind] = _write_head(head, folder, weights, prepared, models["target"], tokenizer.vocab_size)
            drafters.append(DrafterSpec(head.kind, model=head.kind))
    for name, (decoder, layers) in {"target": (prepared.target, None), **drafts}.items():
        models[name] = _add_kv_forms(name, folder, models[name], decoder, prepared)
        sequences = [_tokenizer_of(decoder, prepared).encode(text) for text in HELD]
        models[name] = use_first(folder, _prove(name, folder, models[name], stored[name], decoder, layers, config, sequences), config.kv)
    for head in prepared.heads:
        models[head.kind] = with_first_step(folder, models["target"], models[head.kind])
    _try_drafts(folder, models, prepared, drafts, tokenizer.vocab_size)
    models["target"], exactness = _measure(folder, models["target"], prepared, tokenizer.vocab_size)
    if config.ort_format:
        with _step("converting to ONNX Runtime's format", config.quiet):
            models = ort_format.convert(folder, models, prepared.tokenizer.encode(HELD[0]))
    files = tuple(describe_file(path) for path in sorted(folder.iterdir()))
    manifest = Manifest(FORMAT_VERSION, f"edgespec {__version__}", models, tokenizer, tuple(drafters), files, exactness)
    return parse_manifest(manifest.to_json(), where=MANIFEST_NAME)


def _write_model(
    name: str, folder: Path, weights: WeightFile, prepared: Prepared, decoder: Decoder, layers: int | None
) -> tuple[ModelSpec, StoredWeights]:
    """Rewrite a copy of the traced graph, write its weights and save it; ``layers`` for an early exit."""
    config = prepared.config
    kind = _weights_of(name, config)
    if kind not in decoder.choices:
        decoder.choices[kind] = choose(kind, config, decoder.checkpoint, _matrices(decoder), _tokenizer_of(decoder, prepared), name)
    choice = decoder.choices[kind]
    taps = tuple(dict.fromkeys((*taps_of(prepared.heads), *config.taps))) if name == "target" else ()
    styled = functools.partial(pipeline, choice.plan, layers, decoder.capacity, taps)
    write = _GraphWriter(name, folder, weights, decoder, choice, config.quiet)
    # What a draft computes only has to be likely, so only the target's arithmetic must not depend on the width of a pass.
    style = Style(padded=name == "target")
    places = write(styled(style), f"{name}.onnx")
    vocabulary = min(len(_tokenizer_of(decoder, prepared)), decoder.traced.vocab_size)
    wanted = [profile for profile in variants.STYLES if profile in config.profiles]
    others = {profile: variants.write_variant(name, profile, vocabulary, styled, folder, write) for profile in wanted}
    origin, traced = decoder.checkpoint.origin, decoder.traced
    token_ids, tokenizer = decoder.vocabulary.save(folder, name) if decoder.vocabulary else (None, None)
    spec = ModelSpec(
        architecture=decoder.checkpoint.config.get_text_config().model_type,
        graph=f"{name}.onnx",
        weights=(weights.path.name,),
        layers=traced.layers[:layers],
        vocab_size=traced.vocab_size,
        hidden_size=traced.hidden_size,
        capacity=decoder.capacity,
        max_width=min(config.max_width, decoder.capacity),
        quantisation=choice.quantisation,
        source=Source(origin.name, origin.revision, origin.licence, derived=_derived(name, decoder, prepared, layers)),
        token_ids=token_ids,
        tokenizer=tokenizer,
        hidden_states=len(taps) * traced.hidden_size or None,
        taps=tuple(Tap(tap, traced.hidden_size) for tap in taps) or None,
        variants=others or None,
        pads_attention=style.padded,
    )
    if NPU in config.profiles:
        spec = dataclasses.replace(spec, profiles={NPU: _write_static(write, spec, prepared, layers)})
    return spec, StoredWeights(weights.path, places, _shapes(decoder), decoder.checkpoint)


@dataclasses.dataclass(frozen=True)
class _GraphWriter:
    """Writes graphs of the model ``name``: what passes make of a copy of the traced one, its weights to the others."""

    name: str
    folder: Path
    weights: WeightFile
    decoder: Decoder
    choice: Choice
    quiet: bool

    def __call__(self, passes: Pipeline, file: str) -> dict[Recipe, Place]:
        """Write one graph as ``file``, and say where its weights are."""
        model = self.decoder.traced.model.clone()
        passes(model)
        hidden = True if self.quiet else None  # None hides it where stderr is no terminal
        count, ready, method = count_recipes(model.graph), self.choice.ready, self.choice.method
        with tqdm(total=count, desc=f"{self.name}: weights", unit="tensor", disable=hidden, leave=False) as bar:
            places = self.weights.fill(model.graph, self.decoder.checkpoint, lambda done: bar.update(done) and None, ready, method)
        self.weights.flush()
        ir.save(model, self.folder / file)
        return places


def _write_static(write: _GraphWriter, spec: ModelSpec, prepared: Prepared, layers: int | None) -> StaticProfile:
    """Write the graphs of fixed shapes of the model that ``spec`` is of."""
    config, name = prepared.config, write.name
    sizes, taps = static_sizes(config.npu_widths, spec.capacity), tuple(tap.name for tap in spec.taps or ())

    def pipelines(ranges: Ranges | None = None) -> dict[StaticSizes, Pipeline]:
        return {size: static_pipeline(write.choice.plan, layers, size, taps, ranges) for size in sizes}

    if not config.has_integer_graphs:
        return write_graphs(name, pipelines(), write)
    ids = calibration_ids(config, _tokenizer_of(write.decoder, prepared))
    with _step(f"{name}: calibrating activations", config.quiet):
        return write_integer_graphs(name, write.folder, spec, pipelines, write, ids)


def _derived(name: str, decoder: Decoder, prepared: Prepared, layers: int | None) -> str | None:
    """How a draft was made from the target, if it was."""
    if layers:
        return f"first {layers} layers of the target"
    own = name != "target" and decoder is prepared.target
    return f"the target with {_weights_of(name, prepared.config)} weights" if own else None


def _tokenizer_of(decoder: Decoder, prepared: Prepared) -> Tokenizer:
    return decoder.vocabulary.tokenizer if decoder.vocabulary else prepared.tokenizer


def _shapes(decoder: Decoder) -> dict[str, tuple[int, ...]]:
    """The shape of each of the original's tensors that the graph is made of."""
    values = [value for value in decoder.traced.model.graph.initializers.values() if get_recipe(value) is not None]
    return {value.name or "": fixed_shape(value) for value in values}


def open_shape(config: ExportConfig) -> TargetShape:
    """The target's matrices and what a head for it must fit, without tracing anything."""
    checkpoint = open_checkpoint(config.target, revision=config.revision, trust_remote_code=config.trust_remote_code)
    return target_shape(checkpoint, bound_model(checkpoint, build_empty(checkpoint.config_copy())))


def target_shape(checkpoint: Checkpoint, model: PreTrainedModel) -> TargetShape:
    """What a head for this target must fit."""
    config = checkpoint.config.get_text_config()
    rows = int(model.get_output_embeddings().weight.shape[0])
    return TargetShape(int(config.hidden_size), rows, int(config.num_hidden_layers), checkpoint, *matrix_names(model))


def _write_head(head: Head, folder: Path, weights: WeightFile, prepared: Prepared, target: ModelSpec, vocabulary: int) -> ModelSpec:
    config = prepared.config
    with _step(f"{head.kind}: writing", config.quiet):
        plan = prepared.target.choices[_weights_of("target", config)].plan
        return head.write(Workplace(folder, weights, config, target, plan, vocabulary))


def _try_drafts(
    folder: Path, models: dict[str, ModelSpec], prepared: Prepared, drafts: Mapping[str, tuple[Decoder, int | None]], vocabulary: int
) -> None:
    """See how often drafts are right on text that the exported target writes, and compare heads with their originals on the hidden states
    that it gives there."""
    own = [name for name, (decoder, _) in drafts.items() if decoder.vocabulary is None]
    if not prepared.heads and not own:
        return
    target = models["target"]
    with _step("drafts: trying them on the target's text", prepared.config.quiet):
        texts = [prepared.tokenizer.encode(text) for text in HELD[:SAMPLES]]
        samples = write_samples(folder / target.graph, target, texts, min(vocabulary, target.vocab_size))
        for name in own:
            share = draft_share_right(folder / models[name].graph, models[name], samples)
            models[name] = dataclasses.replace(models[name], accuracy=((share,),))
        for head in prepared.heads:
            chosen = columns(target, head.taps)
            read = [Sample(sample.tokens, sample.features[:, chosen], sample.written) for sample in samples]
            models[head.kind] = head.prove(folder, models[head.kind], read, prepared.config)
            if models[head.kind].fused is not None:
                prove_fused(folder, target, models[head.kind], samples[0].tokens)


def _matrices(decoder: Decoder) -> list[str]:
    """Names of the tensors that linear layers and embeddings multiply by."""
    graph = decoder.traced.model.graph
    inputs = [node.inputs[position] for op, position in (("Linear", 1), ("Embedding", 1)) for node in dialect_nodes(graph, op)]
    recipes = [recipe for value in inputs if (recipe := get_recipe(value)) is not None]
    return sorted({source for recipe in recipes for source in recipe.sources})


def _weights_of(name: str, config: ExportConfig) -> str:
    return config.draft_weights if name.startswith("draft") and config.draft_weights else config.weights


def _add_kv_forms(name: str, folder: Path, spec: ModelSpec, decoder: Decoder, prepared: Prepared) -> ModelSpec:
    """Graphs over the quantised KV caches that are wanted, beside the one over float32 caches, which the proof needs in any case."""
    wanted = [kv_dtype for kv_dtype in prepared.config.kv if kv_dtype in QUANTISED]
    if not wanted:
        return spec
    with _step(f"{name}: calibrating KV caches", prepared.config.quiet):
        return add_kv_forms(folder, spec, wanted, calibration_ids(prepared.config, _tokenizer_of(decoder, prepared)))


def _prove(
    name: str,
    folder: Path,
    spec: ModelSpec,
    stored: StoredWeights,
    decoder: Decoder,
    layers: int | None,
    config: ExportConfig,
    sequences: list[list[int]],
) -> ModelSpec:
    """Compare with the original, of an early exit with the first ``layers`` of it."""
    kind = _weights_of(name, config)
    key = (kind, len(spec.layers))
    if key not in decoder.proven:
        with _step(f"{name}: comparing with the original", config.quiet):
            model_config = decoder.checkpoint.config_copy()
            if layers is not None:
                model_config = shallow_config(model_config, layers)
            original = parity.Original(decoder.checkpoint, model_config, sum(map(math.prod, _shapes(decoder).values())))
            decoder.proven[key] = parity.check(name, folder, spec, stored, original, sequences, config.kv)
    found = decoder.proven[key]
    for kv_dtype, fidelity in found.items():
        parity.require(name, fidelity, kind, config.max_kl, kv_dtype)
    for profile in (*(spec.profiles or {}), *(spec.variants or {})):
        with _step(f"{name}: comparing the {profile} profile", config.quiet):
            distance = profile_proof.prove(folder, spec, kind, name, profile, sequences)
        if profile == NPU and config.has_integer_graphs:
            static = dataclasses.replace((spec.profiles or {})[NPU], fidelity=distance)
            spec = dataclasses.replace(spec, profiles={NPU: static})
    forms = {kv_dtype: dataclasses.replace(form, fidelity=found[kv_dtype]) for kv_dtype, form in (spec.kv_forms or {}).items()}
    return dataclasses.replace(spec, fidelity=found.get(spec.kv_dtype), kv_forms=forms or None)


def _measure(folder: Path, spec: ModelSpec, prepared: Prepared, vocabulary: int) -> tuple[ModelSpec, Exactness]:
    """Costs and equal widths of the target on this machine, measured once for all bundles of a preparation."""
    kind = _weights_of("target", prepared.config)
    measured = prepared.target.measured
    if kind not in measured:
        with _step("target: measuring passes", prepared.config.quiet):
            measured[kind] = measure_target(folder, spec, min(vocabulary, spec.vocab_size))
    costs, exactness = measured[kind]
    return dataclasses.replace(spec, pass_ms=costs), exactness


def _open_draft(prepared: Prepared, draft: str) -> Decoder:
    """The draft's decoder: the target's own for an early exit."""
    config = prepared.config
    if draft == SELF:
        return prepared.target
    layers = early_exit_layers(draft)
    if layers is not None:
        total = len(prepared.target.traced.layers)
        if layers >= total:
            raise UsageError(f"--draft layers:{layers}: the target has {total} layers; choose 1 to {total - 1}")
        return prepared.target
    with _step("reading the draft", config.quiet):
        checkpoint = open_checkpoint(draft, revision=config.draft_revision, trust_remote_code=config.trust_remote_code)
        tokenizer = Tokenizer(checkpoint, trust_remote_code=config.trust_remote_code)
        rows = int(checkpoint.config.get_text_config().vocab_size)
        tokenizer.check_ids(rows, HELD)
        vocabulary = other_vocabulary(tokenizer, prepared.tokenizer, rows, prepared.target.traced.vocab_size, f"--draft {draft}")
        model = build_empty(checkpoint.config_copy())
        capacity = _draft_capacity(model, prepared.target.capacity)
        checkpoint.forget_header()
        model = bound_model(checkpoint, model)
    return dataclasses.replace(_decoder(checkpoint, model, "draft", capacity, config.quiet), vocabulary=vocabulary)


def bound_model(checkpoint: Checkpoint, model: PreTrainedModel) -> PreTrainedModel:
    """The checkpoint knows the names of the model's tensors; the model anew if these are not tied as its configuration says."""
    checkpoint.bind(model)
    if not is_untied(checkpoint, tied_names(model)):
        return model
    # As transformers does: what is stored apart and differs is apart, whatever the configuration says.
    for part in (checkpoint.config, checkpoint.config.get_text_config()):
        part.tie_word_embeddings = False
    model = build_empty(checkpoint.config_copy())
    checkpoint.bind(model)
    return model


def _decoder(checkpoint: Checkpoint, model: PreTrainedModel, name: str, capacity: int, quiet: bool) -> Decoder:
    for line in () if quiet else dense_experts(model):
        print(line, file=sys.stderr)
    check_complete(checkpoint, model, tied_names(model))
    with _step(f"{name}: tracing", quiet):
        fix_angles(model)
        traced = trace(model)
    check_windows(checkpoint.config.get_text_config(), traced.layers, capacity)
    return Decoder(checkpoint, traced, capacity)


def _draft_capacity(model: PreTrainedModel, target: int) -> int:
    """KV rows of a draft: as many as the target has, or what the draft was made for. Of a longer text it sees the end."""
    return int(steady_length(model, min(target, _positions(model) or target))[0])


def _positions(model: PreTrainedModel) -> int | None:
    """Most tokens that the model was made for, where it says so."""
    limit: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return limit


def _capacity(model: PreTrainedModel, config: ExportConfig) -> int:
    """KV rows of the bundle, within what the model was trained for and what one set of rotary angles serves."""
    limit = _positions(model)
    wanted = config.context or min(limit or DEFAULT_CONTEXT_LIMIT, DEFAULT_CONTEXT_LIMIT)
    if limit is not None and wanted > limit:
        raise CapacityError(f"--context: {wanted} tokens are more than the {limit} that the model was made for; choose at most {limit}")
    steady, kind = steady_length(model, wanted)
    if config.context and steady < wanted:
        raise CapacityError(
            f"--context: {wanted} tokens are more than {steady}, where the rotary scaling {kind} of {model.config.model_type} changes to "
            f"other angles, which a cache cannot follow; choose at most {steady}"
        )
    return int(steady)


@contextlib.contextmanager
def _step(title: str, quiet: bool) -> Iterator[None]:
    """A line on stderr while a step without countable parts runs, with its time and the process's peak memory so far when it is done.
    What the step leaves unused is given back to the system."""
    start = time.monotonic()
    if not quiet:
        print(f"{title} ...", end="", file=sys.stderr, flush=True)
    try:
        yield
    except BaseException:
        if not quiet:
            print(file=sys.stderr)
        raise
    gc.collect()  # modules of torch refer to each other in circles, and hold a model's weights until then
    return_freed_memory()
    if not quiet:
        print(f" {time.monotonic() - start:.1f} s, memory {peak_rss_bytes() / 1e6:,.0f} MB at most", file=sys.stderr)
