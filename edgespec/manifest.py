"""The manifest ``edgespec.json``: what a bundle holds, typed and versioned.

This is the one description that the exporter writes and that the runtime, the command line and the demo read. The
format is specified in docs/bundle.md. Bundles come from strangers: a manifest is checked field by field, file names
cannot leave the bundle, and an error names the field and the value.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import re
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from edgespec.errors import BundleError

FORMAT_VERSION = 1
MANIFEST_NAME = "edgespec.json"
MAX_MANIFEST_BYTES = 16 * 2**20

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}")
_MODEL_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_TAP = re.compile(r"last|layer\.[1-9][0-9]{0,3}")
_KINDS_OF_MODELS = {"draft": (False, True), "eagle": (True, True), "medusa": (True, False)}
"""Whether the model of a drafter is a head that reads hidden states, and whether it keeps a cache."""
_WIDTH = re.compile(r"[1-9][0-9]{0,5}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class BundleFile:
    """One file of the bundle. ``name`` is a plain file name: no folder, no link out of the bundle."""

    name: str
    size: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class KvLayer:
    """The KV cache of one layer. The buffers are ``[1, heads, C, key_dim]`` and ``[1, heads, C, value_dim]``.

    ``window`` is the number of positions that the layer attends to, None for all of them.
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
    point into the model's own files of weights, or are ``compiled`` for a provider."""

    capacity: int
    graphs: tuple[StaticGraph, ...]
    compiled: Compiled | None = None


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
    ``accuracy`` is, for each of the heads, how often its token of each rank was the target's. ``profiles`` are other graphs
    of the same model by name, such as "npu".
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
    profiles: dict[str, StaticProfile] | None = None


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
        data = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{where}: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise BundleError(f"{where}: expected an object, found {_kind(data)}")
    version = data.get("format_version")
    if type(version) is not int or version < 1:
        raise BundleError(f"{where}: format_version: expected a positive whole number, found {_short(version)}")
    if version > FORMAT_VERSION:
        raise BundleError(
            f"{where}: format_version: {version} is newer than {FORMAT_VERSION}, the newest this edgespec reads; upgrade edgespec"
        )
    manifest: Manifest = _decode(Manifest, data, where, "")
    _check(manifest, where)
    return manifest


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names differ: of a name given twice, two readers of the format might take different values."""
    names = dict(pairs)
    if len(names) != len(pairs):
        twice = collections.Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"{_short(twice)} is given twice in one object")
    return names


def _decode(kind: Any, value: Any, where: str, field: str) -> Any:
    """``value`` as ``kind``: a dataclass, tuple[X, ...], dict[str, X], X | None or a plain type."""

    def wrong(expected: str) -> BundleError:
        return BundleError(f"{where}: {field or 'manifest'}: expected {expected}, found {_short(value)}")

    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise wrong("an object")
        hints = typing.get_type_hints(kind)
        prefix = f"{field}." if field else ""
        known = {entry.name: entry for entry in dataclasses.fields(kind)}
        for name in value:
            if name not in known:
                raise BundleError(f"{where}: {prefix}{_short(name)}: unknown field")
        for name, entry in known.items():
            required = entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING
            if required and name not in value:
                raise BundleError(f"{where}: {prefix}{name}: missing")
        return kind(**{name: _decode(hints[name], item, where, prefix + name) for name, item in value.items()})  # type: ignore[operator]
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _decode(next(arg for arg in args if arg is not type(None)), value, where, field)
    if origin is tuple:
        if not isinstance(value, list):
            raise wrong("a list")
        return tuple(_decode(args[0], item, where, f"{field}[{index}]") for index, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            raise wrong("an object")
        return {
            _decode(str, key, where, f"{field} names"): _decode(args[1], item, where, f"{field}.{_plain(key)}")
            for key, item in value.items()
        }
    if kind is float and type(value) in (int, float):
        # NaN and Infinity are no JSON, though Python reads them, and 10**400 is a whole number that no float holds.
        if not -1e300 < value < 1e300:
            raise wrong("a finite number")
        return float(value)
    if type(value) is not kind:
        raise wrong({str: "text", int: "a whole number", float: "a number", bool: "true or false"}[kind])
    if kind is str and not _is_unicode(value):
        raise wrong("text")
    return value


def _check(manifest: Manifest, where: str) -> None:
    """Ranges and references between fields."""

    def need(condition: bool, field: str, value: object, rule: str) -> None:
        if not condition:
            raise BundleError(f"{where}: {field}: {_short(value)} {rule}")

    listed: set[str] = set()
    for index, file in enumerate(manifest.files):
        field = f"files[{index}]"
        need(
            bool(_FILE_NAME.fullmatch(file.name)) and file.name != MANIFEST_NAME,
            f"{field}.name",
            file.name,
            "is not a plain file name inside the bundle",
        )
        need(file.name not in listed, f"{field}.name", file.name, "is listed twice")
        need(0 <= file.size < 2**50, f"{field}.size", file.size, "is not a file size")
        need(bool(_SHA256.fullmatch(file.sha256)), f"{field}.sha256", file.sha256, "is not a sha256 in lower-case hex")
        listed.add(file.name)

    def need_file(name: str | None, field: str) -> None:
        need(name is None or name in listed, field, name, "is not among the bundle's files")

    def check_tokenizer(tokenizer: TokenizerSpec, field: str, vocabulary: int) -> None:
        need_file(tokenizer.file, f"{field}.file")
        need_file(tokenizer.chat_template, f"{field}.chat_template")
        need(tokenizer.vocab_size > 0, f"{field}.vocab_size", tokenizer.vocab_size, "is not positive")
        begin = () if tokenizer.bos_id is None else (tokenizer.bos_id,)
        for name, values in {"eos_ids": tokenizer.eos_ids, "prefix_ids": tokenizer.prefix_ids, "bos_id": begin}.items():
            for value in values:
                need(0 <= value < vocabulary, f"{field}.{name}", value, "is outside the model's vocabulary")

    need("target" in manifest.models, "models", sorted(manifest.models), "has no target")
    for name, model in manifest.models.items():
        need(bool(_MODEL_NAME.fullmatch(name)), "models", name, "is not a name of lower-case letters, digits, '_' and '-'")
        field = f"models.{name}"
        need_file(model.graph, f"{field}.graph")
        for index, file_name in enumerate(model.weights):
            need_file(file_name, f"{field}.weights[{index}]")
        least = 0 if model.reads else 1
        need(least <= len(model.layers) <= 10_000, f"{field}.layers", len(model.layers), "layers are out of range")
        for index, layer in enumerate(model.layers):
            for part in ("heads", "key_dim", "value_dim"):
                need(0 < getattr(layer, part) <= 2**20, f"{field}.layers[{index}].{part}", getattr(layer, part), "is out of range")
            need(layer.window is None or layer.window > 0, f"{field}.layers[{index}].window", layer.window, "is not positive")
        for part, limit in (("vocab_size", 2**26), ("hidden_size", 2**20), ("capacity", 2**26), ("max_width", 2**16)):
            need(0 < getattr(model, part) <= limit, f"{field}.{part}", getattr(model, part), "is out of range")
        need(model.max_width <= model.capacity, f"{field}.max_width", model.max_width, "is more than the capacity")
        need(model.kv_dtype in ("float32", "float16"), f"{field}.kv_dtype", model.kv_dtype, "is not float32 or float16")
        need(1 <= model.quantisation.bits <= 32, f"{field}.quantisation.bits", model.quantisation.bits, "is out of range")
        for tensor, form in (model.quantisation.tensors or {}).items():
            need(1 <= form.bits <= 32, f"{field}.quantisation.tensors.{_plain(tensor)}.bits", form.bits, "is out of range")
        need(
            model.hidden_states is None or 0 < model.hidden_states <= 2**22,
            f"{field}.hidden_states",
            model.hidden_states,
            "is out of range",
        )
        _check_heads(manifest, name, need)
        need_file(model.token_ids, f"{field}.token_ids")
        if model.tokenizer is not None:
            need(model.token_ids is not None and name != "target", f"{field}.tokenizer", model.tokenizer.file, "is without token_ids")
            check_tokenizer(model.tokenizer, f"{field}.tokenizer", model.vocab_size)
        for profile, static in (model.profiles or {}).items():
            place = f"{field}.profiles.{_plain(profile)}"
            need(
                bool(_MODEL_NAME.fullmatch(profile)),
                f"{field}.profiles",
                profile,
                "is not a name of lower-case letters, digits, '_' and '-'",
            )
            need(0 < static.capacity <= model.capacity, f"{place}.capacity", static.capacity, "is not within the model's capacity")
            need(0 < len(static.graphs) <= 100, f"{place}.graphs", len(static.graphs), "graphs are out of range")
            for index, context in enumerate(static.compiled.contexts if static.compiled else ()):
                need_file(context, f"{place}.compiled.contexts[{index}]")
            for index, graph in enumerate(static.graphs):
                least = static.graphs[index - 1].width if index else 0
                need_file(graph.graph, f"{place}.graphs[{index}].graph")
                need(
                    least < graph.width <= static.capacity,
                    f"{place}.graphs[{index}].width",
                    graph.width,
                    "is not ascending within the capacity",
                )
                need(0 < graph.rows <= graph.width, f"{place}.graphs[{index}].rows", graph.rows, "is not within the width")
            whole = any(graph.rows == graph.width for graph in static.graphs)
            need(whole, f"{place}.graphs", len(static.graphs), "graphs and none of them with logits for every row")
        for width, cost in (model.pass_ms or {}).items():
            need(bool(_WIDTH.fullmatch(width)), f"{field}.pass_ms", width, "is not the width of a pass")
            need(cost >= 0, f"{field}.pass_ms.{width}", cost, "is not a duration")
    check_tokenizer(manifest.tokenizer, "tokenizer", manifest.target.vocab_size)
    for index, drafter in enumerate(manifest.drafters):
        need(
            drafter.model is None or drafter.model in manifest.models, f"drafters[{index}].model", drafter.model, "is not among the models"
        )
        # One model has one KV cache: drafting with the target's own would overwrite what the target has accepted.
        need(drafter.model != "target", f"drafters[{index}].model", drafter.model, "is the target, which cannot draft for itself")
        if drafter.kind in _KINDS_OF_MODELS and drafter.model is not None:
            model = manifest.models[drafter.model]
            fits = (model.reads is not None, bool(model.layers)) == _KINDS_OF_MODELS[drafter.kind]
            need(fits, f"drafters[{index}].model", drafter.model, f"is not what a drafter of kind {drafter.kind} runs")
    for index, wide in enumerate(manifest.exactness.widths if manifest.exactness else ()):
        need(0 < wide <= 2**16, f"exactness.widths[{index}]", wide, "is out of range")


def _check_heads(manifest: Manifest, name: str, need: Callable[[bool, str, object, str], None]) -> None:
    """What a model gives to draft heads, or takes as one."""
    model, field = manifest.models[name], f"models.{name}"
    given = model.taps or ()
    for index, tap in enumerate(given):
        need(bool(_TAP.fullmatch(tap.name)), f"{field}.taps[{index}].name", tap.name, "is not the name of a tap")
        need(0 < tap.width <= 2**20, f"{field}.taps[{index}].width", tap.width, "is out of range")
    need(len({tap.name for tap in given}) == len(given), f"{field}.taps", len(given), "taps do not all have names of their own")
    wide = sum(tap.width for tap in given)
    need(not given or wide == model.hidden_states, f"{field}.taps", wide, "columns are not those of hidden_states")
    widths = {tap.name: tap.width for tap in manifest.target.taps or ()}
    need((model.reads is None) == (model.features is None), f"{field}.features", model.features, "goes with reads, and reads with it")
    need(model.reads is None or name != "target", f"{field}.reads", model.reads, "is not for the target")
    need(model.reads is None or len(model.reads) > 0, f"{field}.reads", model.reads, "names no tap")
    for index, read in enumerate(model.reads or ()):
        need(read in widths, f"{field}.reads[{index}]", read, "is not among the taps of the target")
    wide = sum(widths[read] for read in model.reads or ())
    need(model.features in (None, wide), f"{field}.features", model.features, f"is not the width of what it reads, {wide}")
    for index, ranks in enumerate(model.accuracy or ()):
        for rank, share in enumerate(ranks):
            need(0 <= share <= 1, f"{field}.accuracy[{index}][{rank}]", share, "is not a share")


def _kind(value: object) -> str:
    return {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}.get(type(value), "a number")


def _is_unicode(text: str) -> bool:
    """Whether ``text`` can be written as UTF-8. JSON can smuggle in half of a surrogate pair, which cannot."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _plain(key: str) -> str:
    """``key`` as part of a field's name: as it is if that is harmless."""
    return key if key.isascii() and key.isprintable() and len(key) < 60 else _short(key)


def _short(value: object) -> str:
    # Escaped, because it comes from a stranger and goes to a terminal.
    text = json.dumps(value, default=str) if not isinstance(value, (dict, list)) else _kind(value)
    return text if len(text) <= 60 else text[:57] + "..."
