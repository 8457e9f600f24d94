"""Ranges of a manifest's fields, and references between them. Their types are right already (:mod:`edgespec.decode`)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from edgespec.decode import plain, short
from edgespec.errors import BundleError

if TYPE_CHECKING:
    from edgespec.manifest import Manifest, ModelSpec, StaticProfile, TokenizerSpec, Variant

MOST_LAYERS = 10_000
MOST_CHANNELS = 2**20
MOST_PASS = 2**16  # tokens
LIMITS = {"vocab_size": 2**26, "hidden_size": MOST_CHANNELS, "capacity": 2**26, "max_width": MOST_PASS}

KV_DTYPES = ("float32", "float16", "int8", "int4")
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}")
MODEL_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
TAP = re.compile(r"last|layer\.[1-9][0-9]{0,3}")
WIDTH = re.compile(r"[1-9][0-9]{0,5}")
SHA256 = re.compile(r"[0-9a-f]{64}")
KINDS_OF_MODELS = {"draft": (False, True), "universal": (False, True), "eagle": (True, True), "medusa": (True, False)}
"""Whether the model of a drafter is a head that reads hidden states, and whether it keeps a cache."""


def check(manifest: Manifest, where: str, own_name: str) -> None:
    """Refuse a manifest whose fields do not go together; ``where`` starts the message, ``own_name`` is the manifest's in the bundle.

    Raises:
        BundleError: names the field, its value and the rule.
    """
    checks = _Checks(manifest, where)
    checks.files(own_name)
    checks.need("target" in manifest.models, "models", sorted(manifest.models), "has no target")
    for name in manifest.models:
        checks.model(name)
    checks.tokenizer(manifest.tokenizer, "tokenizer", manifest.target.vocab_size)
    checks.drafters()
    for index, width in enumerate(manifest.exactness.widths if manifest.exactness else ()):
        checks.need(0 < width <= MOST_PASS, f"exactness.widths[{index}]", width, "is out of range")


class _Checks:
    """One method for each part of a manifest. ``field`` is the place of what is checked, for messages."""

    def __init__(self, manifest: Manifest, where: str) -> None:
        self._manifest, self._where = manifest, where
        self._listed: set[str] = set()

    def need(self, condition: bool, field: str, value: object, rule: str) -> None:
        if not condition:
            raise BundleError(f"{self._where}: {field}: {short(value)} {rule}")

    def need_file(self, name: str | None, field: str) -> None:
        self.need(name is None or name in self._listed, field, name, "is not among the bundle's files")

    def files(self, own_name: str) -> None:
        for index, file in enumerate(self._manifest.files):
            field = f"files[{index}]"
            is_plain = bool(FILE_NAME.fullmatch(file.name)) and file.name != own_name
            self.need(is_plain, f"{field}.name", file.name, "is not a plain file name inside the bundle")
            self.need(file.name not in self._listed, f"{field}.name", file.name, "is listed twice")
            self.need(0 <= file.size < 2**50, f"{field}.size", file.size, "is not a file size")
            self.need(bool(SHA256.fullmatch(file.sha256)), f"{field}.sha256", file.sha256, "is not a sha256 in lower-case hex")
            self._listed.add(file.name)

    def model(self, name: str) -> None:
        self._name(name, "models")
        model, field = self._manifest.models[name], f"models.{name}"
        self.need_file(model.graph, f"{field}.graph")
        for index, file_name in enumerate(model.weights):
            self.need_file(file_name, f"{field}.weights[{index}]")
        self._sizes(model, field)
        self._kv(model, field)
        self._taps(model, field)
        self._reads(name, model, field)
        self.need_file(model.token_ids, f"{field}.token_ids")
        self.need_file(model.fused, f"{field}.fused")
        with_cache = bool(model.reads and model.layers)
        self.need(model.fused is None or with_cache, f"{field}.fused", model.fused, "is for a draft head with a cache")
        if model.tokenizer is not None:
            self.need(model.token_ids is not None and name != "target", f"{field}.tokenizer", model.tokenizer.file, "is without token_ids")
            self.tokenizer(model.tokenizer, f"{field}.tokenizer", model.vocab_size)
        for profile, static in (model.profiles or {}).items():
            self._name(profile, f"{field}.profiles")
            self._profile(static, model, f"{field}.profiles.{plain(profile)}")
        for profile, variant in (model.variants or {}).items():
            self._name(profile, f"{field}.variants")
            self.need(profile not in (model.profiles or {}), f"{field}.variants", profile, "is also the name of a static profile")
            self._variant(variant, model, f"{field}.variants.{plain(profile)}")
        for width, cost in (model.pass_ms or {}).items():
            self.need(bool(WIDTH.fullmatch(width)), f"{field}.pass_ms", width, "is not the width of a pass")
            self.need(cost >= 0, f"{field}.pass_ms.{width}", cost, "is not a duration")

    def _variant(self, variant: Variant, model: ModelSpec, field: str) -> None:
        for part in ("graph", "tree", "take", "put"):
            self.need_file(getattr(variant, part), f"{field}.{part}")
        self.need((variant.take is None) == (variant.put is None), f"{field}.put", variant.put, "goes with take, and take with it")
        self.need(variant.tree is None or variant.take is not None, f"{field}.tree", variant.tree, "is without take and put")
        self.need(variant.kv_dtype in ("float32", "float16"), f"{field}.kv_dtype", variant.kv_dtype, "is not float32 or float16")
        self.need(variant.top is None or 1 < variant.top <= model.vocab_size, f"{field}.top", variant.top, "is not within the vocabulary")

    def _name(self, name: str, field: str) -> None:
        self.need(bool(MODEL_NAME.fullmatch(name)), field, name, "is not a name of lower-case letters, digits, '_' and '-'")

    def _sizes(self, model: ModelSpec, field: str) -> None:
        least = 0 if model.reads else 1
        self.need(least <= len(model.layers) <= MOST_LAYERS, f"{field}.layers", len(model.layers), "layers are out of range")
        for index, layer in enumerate(model.layers):
            for part in ("heads", "key_dim", "value_dim"):
                size = getattr(layer, part)
                self.need(0 < size <= MOST_CHANNELS, f"{field}.layers[{index}].{part}", size, "is out of range")
            self.need(layer.window is None or layer.window > 0, f"{field}.layers[{index}].window", layer.window, "is not positive")
        for part, limit in LIMITS.items():
            self.need(0 < getattr(model, part) <= limit, f"{field}.{part}", getattr(model, part), "is out of range")
        self.need(model.max_width <= model.capacity, f"{field}.max_width", model.max_width, "is more than the capacity")
        self.need(1 <= model.quantisation.bits <= 32, f"{field}.quantisation.bits", model.quantisation.bits, "is out of range")
        for tensor, form in (model.quantisation.tensors or {}).items():
            self.need(1 <= form.bits <= 32, f"{field}.quantisation.tensors.{plain(tensor)}.bits", form.bits, "is out of range")
        columns = model.hidden_states
        self.need(columns is None or 0 < columns <= 2**22, f"{field}.hidden_states", columns, "is out of range")

    def _kv(self, model: ModelSpec, field: str) -> None:
        """The types of a model's KV caches, that of its graph and those of its other forms."""
        allowed = f"is not {', '.join(KV_DTYPES[:-1])} or {KV_DTYPES[-1]}"
        self.need(model.kv_dtype in KV_DTYPES, f"{field}.kv_dtype", model.kv_dtype, allowed)
        forms = model.kv_forms or {}
        for kv_dtype, form in forms.items():
            self.need(kv_dtype in KV_DTYPES, f"{field}.kv_forms", kv_dtype, allowed)
            self.need(kv_dtype != model.kv_dtype, f"{field}.kv_forms", kv_dtype, "is what kv_dtype says already")
            self.need_file(form.graph, f"{field}.kv_forms.{plain(kv_dtype)}.graph")
        used = {model.kv_dtype, *forms}
        for index, layer in enumerate(model.layers if "int4" in used else ()):
            for part in ("key_dim", "value_dim"):
                size = getattr(layer, part)
                self.need(size % 2 == 0, f"{field}.layers[{index}].{part}", size, "is odd, which int4 cannot hold")
        if used & {"int8", "int4"}:
            for part, graphs in {"profiles": model.profiles, "variants": model.variants}.items():
                self.need(not graphs, f"{field}.{part}", sorted(graphs or ()), "have no KV caches of int8 or int4")

    def _taps(self, model: ModelSpec, field: str) -> None:
        """What a model gives to draft heads."""
        taps = model.taps or ()
        for index, tap in enumerate(taps):
            self.need(bool(TAP.fullmatch(tap.name)), f"{field}.taps[{index}].name", tap.name, "is not the name of a tap")
            self.need(0 < tap.width <= MOST_CHANNELS, f"{field}.taps[{index}].width", tap.width, "is out of range")
        self.need(len({tap.name for tap in taps}) == len(taps), f"{field}.taps", len(taps), "taps do not all have names of their own")
        wide = sum(tap.width for tap in taps)
        self.need(not taps or wide == model.hidden_states, f"{field}.taps", wide, "columns are not those of hidden_states")

    def _reads(self, name: str, model: ModelSpec, field: str) -> None:
        """What a draft head takes of the target."""
        reads, widths = model.reads, {tap.name: tap.width for tap in self._manifest.target.taps or ()}
        self.need((reads is None) == (model.features is None), f"{field}.features", model.features, "goes with reads, and reads with it")
        self.need(reads is None or name != "target", f"{field}.reads", reads, "is not for the target")
        self.need(reads is None or len(reads) > 0, f"{field}.reads", reads, "names no tap")
        for index, read in enumerate(reads or ()):
            self.need(read in widths, f"{field}.reads[{index}]", read, "is not among the taps of the target")
        wide = sum(widths[read] for read in reads or ())
        self.need(model.features in (None, wide), f"{field}.features", model.features, f"is not the width of what it reads, {wide}")
        for index, ranks in enumerate(model.accuracy or ()):
            self.need(len(ranks) > 0, f"{field}.accuracy[{index}]", ranks, "names no share")
            for rank, share in enumerate(ranks):
                self.need(0 <= share <= 1, f"{field}.accuracy[{index}][{rank}]", share, "is not a share")

    def _profile(self, static: StaticProfile, model: ModelSpec, field: str) -> None:
        self.need(0 < static.capacity <= model.capacity, f"{field}.capacity", static.capacity, "is not within the model's capacity")
        self.need(static.kv_dtype in ("float32", "uint16"), f"{field}.kv_dtype", static.kv_dtype, "is not float32 or uint16")
        self.need(0 < len(static.graphs) <= 100, f"{field}.graphs", len(static.graphs), "graphs are out of range")
        for index, context in enumerate(static.compiled.contexts if static.compiled else ()):
            self.need_file(context, f"{field}.compiled.contexts[{index}]")
        least = 0
        for index, graph in enumerate(static.graphs):
            place = f"{field}.graphs[{index}]"
            self.need_file(graph.graph, f"{place}.graph")
            self.need(least < graph.width <= static.capacity, f"{place}.width", graph.width, "is not ascending within the capacity")
            self.need(0 < graph.rows <= graph.width, f"{place}.rows", graph.rows, "is not within the width")
            least = graph.width
        whole = any(graph.rows == graph.width for graph in static.graphs)
        self.need(whole, f"{field}.graphs", len(static.graphs), "graphs and none of them with logits for every row")

    def tokenizer(self, tokenizer: TokenizerSpec, field: str, vocabulary: int) -> None:
        self.need_file(tokenizer.file, f"{field}.file")
        self.need_file(tokenizer.chat_template, f"{field}.chat_template")
        self.need(tokenizer.vocab_size > 0, f"{field}.vocab_size", tokenizer.vocab_size, "is not positive")
        begin = () if tokenizer.bos_id is None else (tokenizer.bos_id,)
        for name, values in {"eos_ids": tokenizer.eos_ids, "prefix_ids": tokenizer.prefix_ids, "bos_id": begin}.items():
            for value in values:
                self.need(0 <= value < vocabulary, f"{field}.{name}", value, "is outside the model's vocabulary")

    def drafters(self) -> None:
        models = self._manifest.models
        for index, drafter in enumerate(self._manifest.drafters):
            field = f"drafters[{index}].model"
            self.need(drafter.model is None or drafter.model in models, field, drafter.model, "is not among the models")
            # One model has one KV cache: drafting with the target's own would overwrite what the target has accepted.
            self.need(drafter.model != "target", field, drafter.model, "is the target, which cannot draft for itself")
            if drafter.kind in KINDS_OF_MODELS and drafter.model is not None:
                model = models[drafter.model]
                fits = (model.reads is not None, bool(model.layers)) == KINDS_OF_MODELS[drafter.kind]
                fits = fits and (drafter.kind != "universal" or model.token_ids is not None)
                self.need(fits, field, drafter.model, f"is not what a drafter of kind {drafter.kind} runs")
