"""What an engine will take: the parts, and the peak of their sum.

Three moments are compared, since each has something that the others lack: making a session (a matrix is there twice, as it is
mapped and as it is packed), the self-test (logits of many rows, copied and compared), and generating (full caches).

Sizes of weights come from the graphs themselves. The few constants were fitted with ``python -m benchmarks.memory`` on
Linux x86-64, ONNX Runtime 1.32; what the process holds already is measured when the plan is made, where a budget is to be kept with
the tokenizer.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgespec.errors import UsageError
from edgespec.manifest import Manifest, ModelSpec
from edgespec.runtime.memory import container
from edgespec.runtime.memory.measure import return_freed_memory, usage
from edgespec.runtime.memory.weights import GraphWeights, read_weights
from edgespec.runtime.models.fused import target_graph
from edgespec.runtime.models.kv import in_form
from edgespec.runtime.models.rows import cache_bytes, hold_for

log = logging.getLogger(__name__)

CHUNKS = (128, 64, 32)  # tokens of the prompt in one pass; the self-test shows widths up to the first ones to agree
WIDTHS = (16, 8, 4)  # of a verification pass; with fewer the self-test has too little to compare
LEAST_ROWS = 256
WINDOWED = ("draft", "universal")  # kinds of drafters that can do with the end of a long text
LEAST_WINDOW = 16  # tokens that a draft model has to see
SELF_TEST_FEW, SELF_TEST_ROWS = 37, 332  # cache rows that the self-test and the measurement of costs fill

LIBRARIES = 13 * 10**6  # pages of ONNX Runtime's library and of ours that are read when the first session is made; 10 to 12, by processor
SESSION = 2 * 10**6  # of each session: graph, kernels, threads
NODE = 6 * 10**3  # of each node of a session
HEAP = 3 * 10**6  # small blocks of passes, and what the allocator does not give back
LOOSE_HEAP = 64 * 10**6  # what the allocator may keep besides where no budget has it give back every large block
ACTIVATIONS = 5  # numbers in use for a token over what its widest matrix product makes
TABLE_TOKEN = 20_000  # bytes of the embedding that are mapped per token of a text; many repeat, and Linux maps 64 KiB around a row
FRESH = 0.55  # between a file of packs that was read again and one that was just written
PACKS_RESERVE = 6 * 10**6  # pages that Linux maps around those of packs
TOKEN = 290  # of each token of the tokenizer, with the merge that makes it
TEXT_LIBRARIES = 5_500_000  # of tokenizers and jinja2
INDEX_ROW = 900  # bytes of the n-gram index for a token of the context
SAMPLED_ROWS = 2  # rows of logits that sampling makes of one
TEST_COPIES = 2  # of a pass's logits during the self-test


@dataclasses.dataclass(frozen=True)
class Settings:
    """What can be had for more memory, and is given up for less.

    Attributes:
        context: rows of the target's KV cache.
        chunk: most tokens of a prompt in one pass.
        width: most tokens in a verification pass, one more than can be drafted.
        draft_window: rows of the KV cache of a draft model, which sees so many tokens of the context; 0 without one.
        drafts: draft models by their names in the manifest.
        kv: types of KV caches: the one that is used, and those that may be used in its place when memory is short.
    """

    context: int
    chunk: int
    width: int
    draft_window: int = 0
    drafts: tuple[str, ...] = ()
    kv: tuple[str, ...] = ("float32",)


@dataclasses.dataclass(frozen=True)
class Part:
    """Bytes of one part: private ones, and pages of files, which the system can drop and read again."""

    name: str
    private: int = 0
    evictable: int = 0

    @property
    def total(self) -> int:
        return self.private + self.evictable


@dataclasses.dataclass(frozen=True)
class Plan:
    """Settings, and what they take.

    Attributes:
        peak: the most that is expected to be resident.
        ceiling: the same if a text has every token of the vocabulary. It is what a budget is compared with.
        steps: what was given up for the budget, in words, in order.
    """

    settings: Settings
    parts: tuple[Part, ...]
    peak: int
    ceiling: int
    budget: int | None = None
    steps: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """In plain JSON types."""
        return {
            "settings": dataclasses.asdict(self.settings),
            "parts": [dataclasses.asdict(part) for part in self.parts],
            "private_bytes": sum(part.private for part in self.parts),
            "evictable_bytes": sum(part.evictable for part in self.parts),
            "predicted_peak_bytes": self.peak,
            "ceiling_bytes": self.ceiling,
            "budget_bytes": self.budget,
            "steps": list(self.steps),
        }


class Footprint:
    """Predicts what a bundle's models take in this process. ``held`` is what the process holds already."""

    def __init__(self, bundle: Path, manifest: Manifest, held: Part) -> None:
        self._bundle = bundle
        self._manifest = manifest
        self._held = held
        self._packs = False
        self._weights: dict[str, GraphWeights] = {}

    def with_packs(self) -> Footprint:
        """The same with packed weights as pages of files (:mod:`edgespec.runtime.memory.pack_cache`)."""
        other = copy.copy(self)
        other._packs = True
        return other

    def with_tokenizer(self) -> Footprint:
        """The same with the bundle's tokenizer, where this process does not hold it yet."""
        other = copy.copy(self)
        more = TEXT_LIBRARIES + TOKEN * self._manifest.tokenizer.vocab_size
        other._held = dataclasses.replace(self._held, private=self._held.private + more)
        return other

    @property
    def weights(self) -> dict[str, GraphWeights]:
        """Read once, for this and what is made of it, when first needed: without a budget nothing depends on them."""
        if not self._weights:
            drafts = {name: self._manifest.models[name].graph for name in self.widest().drafts}
            graphs = {"target": target_graph(self._manifest), **drafts}
            self._weights.update((name, read_weights(self._bundle / graph)) for name, graph in graphs.items())
        return self._weights

    def widest(self, context: int | None = None, draft_window: int | None = None, kv: tuple[str, ...] = ()) -> Settings:
        """The settings without any budget: everything that the bundle has, or as much as is asked for.

        Raises:
            UsageError: it was exported for less ``context``, or has no draft model that a ``draft_window`` is for.
        """
        target = self._manifest.target
        rows = context or target.capacity
        if rows > target.capacity:
            raise UsageError(f"context: {rows} is more than the {target.capacity} tokens that this bundle was exported for, with --context")
        drafts = {drafter.model for drafter in self._manifest.drafters if drafter.model is not None}
        windowed = any(drafter.kind in WINDOWED for drafter in self._manifest.drafters)
        if draft_window is not None and not windowed:
            raise UsageError(f"draft_window: {draft_window} is for a draft model, which this bundle lacks")
        window = min(draft_window or rows, rows) if windowed else 0
        width = min(target.max_width, rows)
        return Settings(rows, min(CHUNKS[0], rows), width, window, tuple(sorted(drafts)), kv or (target.kv_dtype,))

    def plan(self, settings: Settings, budget: int | None = None, steps: Sequence[str] = ()) -> Plan:
        """Parts and peak under ``settings``."""
        names = ("target", *settings.drafts)
        weights = [part for name in names for part in self._weight_parts(name, settings)]
        rows = {name: rows_of(name, self._manifest, settings) for name in names}
        caches = [Part(f"KV cache of {name}", private=self._cache(name, count, settings)) for name, count in rows.items()]
        work = self._working(names, settings)
        parts = (self._held, Part("libraries", evictable=LIBRARIES), *weights, *caches, *work)
        fixed = self._held.total + LIBRARIES + sum(part.total for part in weights)
        # A matrix is there as it is mapped and as it is packed; with packs in files that is made anew, to be compared, as well.
        # Nothing has been read from an embedding yet.
        unread = sum(self._table(name, settings) for name in names)
        loading = fixed - unread + max(self.weights[name].largest + self._packs * self.weights[name].largest_packed for name in names)
        testing = fixed + self._self_test(settings)
        generating = sum(part.total for part in parts)
        peak = max(loading, testing, generating)
        whole = sum(self.weights[name].table for name in names)
        ceiling = max(peak, generating + whole - unread) + self._packs * PACKS_RESERVE
        return Plan(settings, parts, peak, ceiling, budget, tuple(steps))

    def container_budget(self, settings: Settings) -> int | None:
        """The room that a container leaves, where ``settings`` might not fit it, and so has to be a budget though none was named."""
        left = container.room()
        if left is None or self.plan(settings).ceiling + LOOSE_HEAP <= left:
            return None
        log.warning("no memory budget was named, and this container leaves %d MB: that is taken as the budget", left / 1e6)
        return max(left, 1)

    def _spec(self, name: str) -> ModelSpec:
        return self._manifest.models[name]

    def _cache(self, name: str, rows: int, settings: Settings) -> int:
        """Bytes of so many cache rows of the type that is used."""
        spec = in_form(self._spec(name), settings.kv[0])
        return cache_bytes(spec, rows, hold_for(spec), max(settings.chunk, settings.width))

    def _weight_parts(self, name: str, settings: Settings) -> list[Part]:
        weights = self.weights[name]
        session = SESSION + weights.nodes * NODE + weights.inline
        return [
            Part(f"packed weights of {name}", **{"evictable" if self._packs else "private": weights.packed}),
            Part(f"mapped weights of {name}", evictable=weights.kept + self._table(name, settings)),
            Part(f"session of {name}", private=session),
        ]

    def _table(self, name: str, settings: Settings) -> int:
        """Bytes of the embedding that a text of this length has mapped."""
        size = self.weights[name].table
        text = size * -math.expm1(-settings.context * TABLE_TOKEN / size) if size else 0.0
        # Of a file that was written a moment ago Linux maps large pieces, soon all of it; of one that was read again, as of any other.
        return int(text + FRESH * (size - text)) if self._packs else int(text)

    def _working(self, names: Sequence[str], settings: Settings) -> list[Part]:
        """Passes run one after the other, so the largest workspace counts; logits stay with each model."""
        widest = max(settings.chunk, settings.width)
        passes = max(self._activations(name) * widest + self._masks(name, widest, settings.context) for name in names)
        # Of a draft one row at a time has logits, of heads a row each.
        rows = {name: settings.width + SAMPLED_ROWS if name == "target" else len(self._spec(name).accuracy or (1,)) for name in names}
        logits = sum(rows[name] * self._spec(name).vocab_size * 4 for name in names)
        return [
            Part("passes", private=passes + HEAP),
            Part("logits", private=logits),
            Part("n-gram index", private=settings.context * INDEX_ROW),
        ]

    def _activations(self, name: str) -> int:
        """Bytes of a pass for each of its tokens."""
        head = self._spec(name).vocab_size
        widest = max((matrix.rows for matrix in self.weights[name].matrices if matrix.rows != head), default=self._spec(name).hidden_size)
        return ACTIVATIONS * 4 * widest

    def _masks(self, name: str, width: int, rows: int) -> int:
        """Attention biases of layers with a window, which are written out for every pass."""
        windows = {layer.window for layer in self._spec(name).layers} - {None}
        return len(windows) * width * rows * 4

    def _self_test(self, settings: Settings) -> int:
        target = self._manifest.target
        # Narrow passes behind many rows; wide ones behind few, with two copies of what they leave in the cache.
        rows = max(min(SELF_TEST_ROWS, settings.context), min(SELF_TEST_FEW, settings.context) + 3 * settings.chunk)
        caches = self._cache("target", rows, settings)
        return caches + HEAP + self._activations("target") * settings.chunk + TEST_COPIES * settings.width * target.vocab_size * 4


def footprint(bundle: Path, manifest: Manifest) -> Footprint:
    """What ``bundle`` would take in this process; :meth:`Footprint.with_tokenizer` if that is not loaded yet.

    Raises:
        BundleError: a graph cannot be read.
    """
    return_freed_memory()
    now = usage()
    return Footprint(bundle, manifest, Part("this process, with the tokenizer", now.private, now.evictable))


def rows_of(name: str, manifest: Manifest, settings: Settings) -> int:
    """Cache rows of a model under ``settings``."""
    windowed = {drafter.model for drafter in manifest.drafters if drafter.kind in WINDOWED}
    return min(settings.draft_window if name in windowed else settings.context, manifest.models[name].capacity)
