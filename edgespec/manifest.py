"""The manifest ``edgespec.json``: what a bundle holds, typed and versioned.

This is the one description that the exporter writes and that the runtime, the command line and the demo read. The
format is specified in docs/bundle.md. Bundles come from strangers: a manifest is checked field by field, file names
cannot leave the bundle, and an error names the field and the value.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from edgespec.decode import decode, kind_of, short, unique_names
from edgespec.errors import BundleError
from edgespec.manifest_check import check

FORMAT_VERSION = 1
MANIFEST_NAME = "edgespec.json"
MAX_MANIFEST_BYTES = 16 * 2**20


@dataclasses.dataclass(frozen=True)
class BundleFile:
    """One file of the bundle. ``name`` is a plain file name: no folder, no link out of the bundle."""

    name: str
    size: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class KvLayer:
    """The KV cache of one layer. The buffers are ``[1, heads, C, key_dim]`` and ``[1, heads, C, value_dim]``.

    ``window`` is the number of positions that the layer attends to, None for all of them. In a cache of int4 two numbers share a byte,
    so its buffers are half as wide.
    """

    heads: int
    key_dim: int
    value_dim: int
    window: int | None = None


@dataclasses.dataclass(frozen=True)
class Tap:
    """Columns of the target's ``hidden_states``: ``layer.{i}`` is what enters layer i, ``last`` what its head reads."""

    name: str
    width: int


@dataclasses.dataclass(frozen=True)
class TensorForm:
    """How one tensor is stored; ``bits`` is 32 for a float tensor."""

    bits: int
    block_size: int | None = None


@dataclasses.dataclass(frozen=True)
class Quantisation:
    """How the weights are stored. ``method`` is "none" for float weights, and then ``bits`` is 32.

    ``tensors`` are those that are stored otherwise, by their names in transformers.
    """

    method: str
    bits: int
    block_size: int | None = None
    symmetric: bool = False
    """Without zero points."""
    tensors: dict[str, TensorForm] | None = None


@dataclasses.dataclass(frozen=True)
class Fidelity:
    """What the export measured against the original model in torch, on real token sequences.

    ``kl`` is the mean KL(float model ‖ exported model) in nats, ``top1`` the share of rows with the same most likely
    token, ``relative_rms`` the rms error of the logits over their standard deviation. ``rows`` is the sample size.
    ``perplexity`` of the exported model and ``original_perplexity`` are over the same tokens, on text that nothing was fitted to.
    ``graph_rms`` is the rms error of the logits, over their standard deviation, in float arithmetic and against the original with the
    very weights that were stored: what the graph itself has changed. ``rounding_kl`` is the KL that rounding activations adds to it.
    """

    kl: float
    top1: float
    relative_rms: float
    rows: int
    perplexity: float | None = None
    original_perplexity: float | None = None
    graph_rms: float | None = None
    rounding_kl: float | None = None


@dataclasses.dataclass(frozen=True)
class KvForm:
    """A model once more, over a KV cache of another type: ``graph`` points into the model's own files of weights."""

    graph: str
    fidelity: Fidelity | None = None


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a checkpoint came from. ``derived`` says how a draft was made from the target, if it was."""

    checkpoint: str
    revision: str | None = None
    licence: str | None = None
    derived: str | None = None


@dataclasses.dataclass(frozen=True)
class StaticGraph:
    """A graph of fixed shapes: ``width`` new tokens, of which ``rows`` get logits."""

    graph: str
    width: int
    rows: int


@dataclasses.dataclass(frozen=True)
class Compiled:
    """The graphs are compiled for ``provider``, by ONNX Runtime's name. ``contexts`` are the files of what came of it; ``shared`` says
    that all graphs use one of them, and have to be loaded as such."""

    provider: str
    contexts: tuple[str, ...]
    shared: bool


@dataclasses.dataclass(frozen=True)
class StaticProfile:
    """A model once more, as graphs of fixed shapes in ascending width, over ``capacity`` cache rows (docs/providers.md). They
    point into the model's own files of weights, or are ``compiled`` for a provider. ``kv_dtype`` is the type of the cache: uint16 for
    graphs that compute with whole numbers, whose scales they have in them. These are another approximation of the original than the
    model's usual graph: ``fidelity`` is against that."""

    capacity: int
    graphs: tuple[StaticGraph, ...]
    compiled: Compiled | None = None
    kv_dtype: str = "float32"
    fidelity: Fidelity | None = None


@dataclasses.dataclass(frozen=True)
class Variant:
    """A model once more, as a ``graph`` for passes of any width that other providers can run (docs/providers.md). It points into the
    model's own files of weights.

    Where ``graph`` has no attention bias and so takes chains only, ``tree`` is the one for trees, over the same cache. ``kv_dtype`` is the
    type of the cache and of the bias. ``top`` is how many of the likeliest tokens the graphs name beside the logits. ``take`` and ``put``
    are graphs that copy rows out of a cache in a device's memory, and write rows into it.
    """

    graph: str
    tree: str | None = None
    kv_dtype: str = "float32"
    top: int | None = None
    take: str | None = None
    put: str | None = None


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """One model of the bundle: a graph that obeys the graph contract of docs/architecture.md.

    ``capacity`` is the largest number of KV rows that the model was exported for, ``max_width`` the largest number of
    new tokens in a verification pass. ``hidden_states`` is the width of the optional output of that name, None
    when the graph has none, and ``taps`` says of a target what its columns are, from the first one on. ``pass_ms`` is the
    cost of a pass in milliseconds by its width, as measured where the bundle was made; it is a first guess for other
    machines and nothing more.

    A draft head has the input ``features``, ``features`` columns wide: the taps of the target that ``reads`` names, side by
    side. Without layers it keeps no cache and ranks tokens for each row by itself (docs/architecture.md). ``token_ids`` is a
    file that gives the target's id for each of the model's own, int32, where these differ; for a draft model it is -1 where
    the target has no such token. ``tokenizer`` is a draft model's own, where it cuts text otherwise than the target's.
    ``accuracy`` is, for each of the heads, how often its token of each rank was the target's. ``fused`` is a graph of the target
    that has the first step of this head in it. ``profiles`` are other graphs of the same model by name, of fixed shapes, such as
    "npu"; ``variants`` those for passes of any width, such as "webgpu". ``kv_forms`` are graphs of it over KV caches of other types
    than ``kv_dtype``, by type.
    ``pads_attention`` says that ``position_ids`` and the biases may have more rows than there are tokens; attention then computes
    that many.
    """

    architecture: str
    graph: str
    weights: tuple[str, ...]
    layers: tuple[KvLayer, ...]
    vocab_size: int
    hidden_size: int
    capacity: int
    max_width: int
    quantisation: Quantisation
    source: Source
    kv_dtype: str = "float32"
    hidden_states: int | None = None
    fidelity: Fidelity | None = None
    pass_ms: dict[str, float] | None = None
    taps: tuple[Tap, ...] | None = None
    reads: tuple[str, ...] | None = None
    features: int | None = None
    token_ids: str | None = None
    tokenizer: TokenizerSpec | None = None
    accuracy: tuple[tuple[float, ...], ...] | None = None
    fused: str | None = None
    profiles: dict[str, StaticProfile] | None = None
    variants: dict[str, Variant] | None = None
    kv_forms: dict[str, KvForm] | None = None
    pads_attention: bool = False


@dataclasses.dataclass(frozen=True)
class TokenizerSpec:
    """``fingerprint`` is the sha256 over the vocabulary (see edgespec.export.tokenizer): equal for a pair that may
    exchange token ids. ``eos_ids`` end a text; ``prefix_ids`` are put before a prompt that is not a chat."""

    file: str
    fingerprint: str
    vocab_size: int
    eos_ids: tuple[int, ...]
    bos_id: int | None = None
    prefix_ids: tuple[int, ...] = ()
    chat_template: str | None = None
    bos_token: str | None = None
    eos_token: str | None = None


@dataclasses.dataclass(frozen=True)
class DrafterSpec:
    """A drafter that the bundle can run. ``kind`` is a registered name; ``model`` names an entry of ``models``."""

    kind: str
    model: str | None = None


@dataclasses.dataclass(frozen=True)
class Exactness:
    """Widths of a target pass that gave equal bits where the bundle was made. The runtime proves its own (docs/exactness.md)."""

    grade: str
    widths: tuple[int, ...]
    machine: str
    onnxruntime: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    format_version: int
    created_by: str
    models: dict[str, ModelSpec]
    tokenizer: TokenizerSpec
    drafters: tuple[DrafterSpec, ...]
    files: tuple[BundleFile, ...]
    exactness: Exactness | None = None

    @property
    def target(self) -> ModelSpec:
        return self.models["target"]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False) + "\n"


def read_manifest(bundle: Path) -> Manifest:
    """Read and check ``bundle/edgespec.json``.

    Raises:
        BundleError: no such folder or file, not JSON, a newer format, or a field that is missing, unknown, of the
            wrong type or out of range. The files themselves are checked by :mod:`edgespec.bundle`.
    """
    path = bundle / MANIFEST_NAME
    if not bundle.is_dir():
        raise BundleError(f"{bundle}: no such bundle folder; make one with: edgespec export MODEL -o {bundle}")
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise BundleError(f"{path}: larger than {MAX_MANIFEST_BYTES} bytes, so not a manifest")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise BundleError(f"{bundle}: not a bundle, it has no {MANIFEST_NAME}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(f"{path}: cannot be read: {error}") from error
    return parse_manifest(text, where=str(path))


def parse_manifest(text: str, where: str = MANIFEST_NAME) -> Manifest:
    """Parse and check the text of a manifest; ``where`` starts the error messages."""
    try:
        data = json.loads(text, object_pairs_hook=unique_names)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{where}: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise BundleError(f"{where}: expected an object, found {kind_of(data)}")
    version = data.get("format_version")
    if type(version) is not int or version < 1:
        raise BundleError(f"{where}: format_version: expected a positive whole number, found {short(version)}")
    if version > FORMAT_VERSION:
        raise BundleError(
            f"{where}: format_version: {version} is newer than {FORMAT_VERSION}, the newest this edgespec reads; upgrade edgespec"
        )
    manifest: Manifest = decode(Manifest, data, where, "")
    check(manifest, where, MANIFEST_NAME)
    return manifest
