"""One model of a bundle: its session, its KV cache, and what can be done to them.

The cache is one zeroed block of memory that the graph reads and writes in place (the past and present of a layer are
the same rows). Where the graph gives the hidden states that a draft head reads, each valid row has its own beside it
(``features``). Verbs:

    run(tokens, rows, ...)   score S new tokens on top of ``length`` valid rows; afterwards they are valid too
    keep_common(context)     keep what a new context shares with the cache
    keep(length)             roll back: fewer rows are valid; the rest is overwritten by the next pass
    keep_path(start, rows)   of the rows from ``start`` on keep only these, moved together (a branch of a tree)

Letters: S new tokens in a pass, R rows that get logits, C rows of capacity, T valid rows after the pass, V vocabulary,
F width of the hidden states.

ONNX Runtime is given raw pointers into numpy memory, once per pair (S, R). A pass then changes a few numbers in place
and binds the attention bias anew, whose shape changes with T: about 60 us beside the pass itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import mmap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgespec.errors import BundleError, CapacityError, RuntimeFailure
from edgespec.manifest import KvLayer, ModelSpec
from edgespec.runtime.session import Choice, first_line, make_session

MASKED = -1e9  # attention bias of a row that must not be seen: exp() of it is exactly 0
PREFILL_WIDTH = 128  # most new tokens in one pass; wider passes need more workspace and are no faster

Floats = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True)
class Hidden:
    """Which rows of a tree are hidden from a pass.

    Attributes:
        trunk: number of rows before the tree.
        mask: bool [S, n], whether a new row must not see one of the n rows behind the trunk.
        positions: int64 [n], their positions.
    """

    trunk: int
    mask: npt.NDArray[np.bool_]
    positions: npt.NDArray[np.int64]


class Model:
    """A session with a KV cache of ``capacity`` rows, of which the first ``length`` are valid."""

    def __init__(
        self,
        graph: Path,
        spec: ModelSpec,
        *,
        capacity: int,
        threads: int,
        providers: Sequence[Choice | str],
        alone: bool = True,
        strict: bool = False,
    ) -> None:
        self.spec = spec
        self.capacity = capacity
        self.tokens: list[int] = []
        """The tokens whose rows are valid, in order."""
        self.passes = 0
        self.run_seconds = 0.0
        """Time inside ONNX Runtime so far; what a caller measures beyond it is ours."""
        self.max_pass = min(capacity, max(PREFILL_WIDTH, spec.max_width))
        self._graph = graph
        self._session = make_session(graph, threads, providers, alone, strict)
        _check_contract(graph, self._session, spec)
        self._dtype = np.dtype(spec.kv_dtype)
        self._caches = _allocate_caches(spec.layers, capacity, self._dtype)
        wide = spec.hidden_states or 0
        self._features = _zeroed(capacity * wide * 4)[: capacity * wide * 4].view(np.float32).reshape(1, 1, capacity, wide)
        self._stores = [*self._caches, self._features] if spec.hidden_states else self._caches
        """All that has one entry for each row of the cache, in axis 2."""
        # Inputs and outputs, as large as they can get. A binding of (S, R) uses the head of each.
        self._tokens = np.zeros(self.max_pass, np.int64)
        self._positions = np.zeros(self.max_pass, np.int64)
        self._seqlens = np.zeros(1, np.int32)
        self._total = np.zeros(1, np.int32)
        self._rows = np.zeros(self.max_pass, np.int64)
        self._logits = np.zeros((0, spec.vocab_size), np.float32)
        # A chain needs no mask beyond the causal one. These zeros are never written, so they share one page of memory.
        self._no_bias = _zeroed(self.max_pass * capacity * 4).view(np.float32)
        # One bias for layers that see everything (window None), and one for each window that layers have.
        self._windows = {layer.window for layer in spec.layers} | {None}
        self._biases = {window: np.zeros(0, np.float32) for window in self._windows}
        self._bindings: dict[tuple[int, int], Any] = {}
        self._offsets = np.arange(self.max_pass, dtype=np.int64)

    @property
    def length(self) -> int:
        """Number of valid rows."""
        return len(self.tokens)

    @property
    def features(self) -> Floats:
        """Hidden states of the valid rows, float32 [length, F]; a view that the next pass extends. F is 0 if the graph gives none."""
        return self._features[0, 0, : self.length]

    def run(
        self,
        tokens: Sequence[int],
        rows: Sequence[int],
        parents: Sequence[int] | None = None,
        width: int | None = None,
        trunk: int | None = None,
    ) -> Floats:
        """Score ``tokens`` on top of the valid rows.

        Args:
            tokens: the S' new tokens.
            rows: which of them get logits, R indices.
            parents: for a tree, the parent of each row behind the trunk, as an offset from the trunk's end and -1 for the
                trunk's last row; None for a chain.
            trunk: number of rows that the whole tree stands on, ``length`` if None. With less, the rows from it on are
                nodes of the tree that earlier passes scored, and ``parents`` begins with theirs: a tree can grow pass by pass.
            width: S, at least S'. The pass is padded to it at the end, where no real row can see the padding, and
                the padding's cache rows stay invalid.

        Returns:
            float32 logits [R, V]. It is a view of a buffer that the next pass overwrites.

        Raises:
            CapacityError: the pass does not fit behind the valid rows.
            RuntimeFailure: ONNX Runtime refuses the pass.
        """
        count, start = len(tokens), self.length
        width = max(count, width or 0)
        total = start + width
        if width > self.max_pass or total > self.capacity:
            raise CapacityError(f"a pass of {width} tokens does not fit: {start} of {self.capacity} cache rows are in use")
        self._tokens[:count] = tokens
        self._tokens[count:width] = tokens[-1]
        np.add(self._offsets[:width], start, out=self._positions[:width])
        self._rows[: len(rows)] = rows
        self._seqlens[0] = total - 1
        self._total[0] = total
        hidden = None if parents is None else self._tree(parents, width, start if trunk is None else trunk)
        binding = self._binding(width, len(rows))
        for window in self._windows:
            bias = self._bias(window, width, total, hidden)
            binding.bind_input(bias_name(window), "cpu", 0, np.float32, [1, 1, width, total], bias.ctypes.data)
        if self.spec.hidden_states:
            where = self._features[0, 0, start:].ctypes.data
            binding.bind_output("hidden_states", "cpu", 0, np.float32, [1, width, self.spec.hidden_states], where)
        started = time.perf_counter()
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:  # onnxruntime's exceptions have no common base of their own
            raise RuntimeFailure(f"{self._graph}: a pass of {width} tokens after {start} failed: {first_line(error)}") from error
        self.run_seconds += time.perf_counter() - started
        self.passes += 1
        self.tokens.extend(tokens)
        return self._logits[: len(rows)]

    def keep(self, length: int) -> None:
        """Roll back to the first ``length`` rows."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot keep {length} of {self.length} cache rows")
        del self.tokens[length:]

    def keep_common(self, context: Sequence[int]) -> None:
        """Keep the rows that belong to the first tokens of ``context``, but not all of it: one is left to run."""
        most = min(self.length, len(context) - 1)
        self.keep(next((index for index in range(most) if self.tokens[index] != context[index]), max(most, 0)))

    def keep_path(self, start: int, rows: Sequence[int]) -> None:
        """Keep the first ``start`` rows and of those after it only ``rows`` (offsets from ``start``, ascending)."""
        count = len(rows)
        if start + max(rows, default=-1) >= self.length or any(b <= a for a, b in itertools.pairwise(rows)):
            raise ValueError(f"rows {list(rows)} after {start} are not ascending rows of a cache of {self.length}")
        if list(rows) != list(range(count)):
            chosen = np.asarray(rows) + start
            tokens = [self.tokens[row] for row in chosen]
            self.keep(start)  # Whatever interrupts the moving, no row is valid whose content is another token's.
            for store in self._stores:
                store[:, :, start : start + count] = store[:, :, chosen]
            self.tokens.extend(tokens)
        self.keep(start + count)

    def cache_rows(self, start: int, stop: int) -> list[npt.NDArray[Any]]:
        """Copies of cache rows, key and value of each layer in turn, [1, H, stop - start, D] each, and of the hidden states,
        [1, 1, stop - start, F], if there are any."""
        return [store[:, :, start:stop].copy() for store in self._stores]

    def restore_rows(self, tokens: Sequence[int], rows: Sequence[npt.NDArray[Any]]) -> bool:
        """Make ``rows``, as :meth:`cache_rows` gave them for ``tokens``, the valid ones. False if they do not fit."""
        count = len(tokens)
        kinds = [((1, store.shape[1], count, store.shape[3]), store.dtype) for store in self._stores]
        if count > self.capacity or [(array.shape, array.dtype) for array in rows] != kinds:
            return False
        self.keep(0)
        for store, array in zip(self._stores, rows, strict=True):
            store[:, :, :count] = array
        self.tokens.extend(tokens)
        return True

    def _tree(self, parents: Sequence[int], width: int, trunk: int) -> Hidden:
        """Sets the new rows' positions, too."""
        before = self.length - trunk
        count = before + width
        if not 0 <= before <= len(parents) <= count:
            raise ValueError(f"{len(parents)} parents for a pass of {width} tokens behind {before} rows of a tree")
        sees = np.zeros((count, count), bool)
        sees[len(parents) :] = True  # padding: nobody reads it
        positions = np.arange(trunk, trunk + count)
        for row, parent in enumerate(parents):
            if parent >= 0:
                sees[row] = sees[parent]
            sees[row, row] = True
            positions[row] = trunk if parent < 0 else positions[parent] + 1
        self._positions[:width] = positions[before:]
        return Hidden(trunk, ~sees[before:], positions)

    def _bias(self, window: int | None, width: int, total: int, hidden: Hidden | None) -> Floats:
        """The bias [S, T] for layers with this window: ``MASKED`` where a row must not see another, else 0."""
        if hidden is None and (window is None or total <= window):
            return self._no_bias
        if self._biases[window].size < width * total:
            self._biases[window] = np.empty(width * self.capacity, np.float32)
        bias = self._biases[window][: width * total].reshape(width, total)
        bias.fill(0.0)
        trunk = total - width if hidden is None else hidden.trunk
        if hidden is not None:
            bias[:, trunk:][hidden.mask] = MASKED
        if window is not None:
            # A row at position p sees the positions p - window + 1 to p. Rows of the trunk are at the position of their
            # index; in a tree several rows share one.
            positions = self._positions[:width]
            oldest = positions - window + 1
            bias[:, :trunk][np.arange(trunk) < oldest[:, None]] = MASKED
            bias[:, trunk:][(positions if hidden is None else hidden.positions) < oldest[:, None]] = MASKED
        return bias

    def _binding(self, width: int, rows: int) -> Any:
        if rows > len(self._logits):
            # A larger output moves, so every binding that points at the old one goes.
            self._logits = np.zeros((rows, self.spec.vocab_size), np.float32)
            self._bindings.clear()
        binding = self._bindings.get((width, rows))
        if binding is None:
            binding = self._bindings[width, rows] = self._bind(width, rows)
        return binding

    def _bind(self, width: int, rows: int) -> Any:
        binding = self._session.io_binding()

        def bind(name: str, array: npt.NDArray[Any], shape: list[int]) -> None:
            binding.bind_input(name, "cpu", 0, array.dtype.type, shape, array.ctypes.data)

        bind("input_ids", self._tokens, [1, width])
        bind("position_ids", self._positions, [1, width])
        bind("seqlens_k", self._seqlens, [1])
        bind("total_sequence_length", self._total, [])
        bind("logit_rows", self._rows, [rows])
        binding.bind_output("logits", "cpu", 0, np.float32, [1, rows, self.spec.vocab_size], self._logits.ctypes.data)
        for index, cache in enumerate(self._caches):
            name = f"{index // 2}.{'value' if index % 2 else 'key'}"
            bind(f"past_key_values.{name}", cache, list(cache.shape))
            binding.bind_output(f"present.{name}", "cpu", 0, cache.dtype.type, list(cache.shape), cache.ctypes.data)
        return binding


def bias_name(window: int | None) -> str:
    """The graph input with the bias for layers of this window."""
    return "attention_bias" if window is None else f"attention_bias_window_{window}"


def bytes_per_row(spec: ModelSpec) -> int:
    """Size of one row of the KV cache over all layers, with its hidden states."""
    cache = sum(layer.heads * (layer.key_dim + layer.value_dim) for layer in spec.layers) * np.dtype(spec.kv_dtype).itemsize
    return cache + 4 * (spec.hidden_states or 0)


def _zeroed(size: int) -> npt.NDArray[np.uint8]:
    """Zeroed bytes of which untouched pages cost nothing, not even to read, and which a forked process does not share.

    np.zeros would ask for huge pages, and a cache of which only the first rows are used would then be resident as a whole.
    """
    if not hasattr(mmap, "MAP_PRIVATE"):  # Windows, whose mappings without a name are private
        return np.frombuffer(mmap.mmap(-1, max(size, 1)), np.uint8)[:size]
    block = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            block.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(block, np.uint8)[:size]


def _allocate_caches(layers: Sequence[KvLayer], capacity: int, dtype: np.dtype[Any]) -> list[npt.NDArray[Any]]:
    """Key and value of each layer in turn, [1, H, C, D] each."""
    shapes = [(1, layer.heads, capacity, dim) for layer in layers for dim in (layer.key_dim, layer.value_dim)]
    sizes = [-(-math.prod(shape) * dtype.itemsize // 64) * 64 for shape in shapes]
    try:
        block = _zeroed(sum(sizes))
    except (OSError, ValueError, OverflowError) as error:
        raise CapacityError(f"cannot allocate a KV cache of {sum(sizes) / 2**20:.0f} MiB for {capacity} tokens") from error
    caches, offset = [], 0
    for shape, size in zip(shapes, sizes, strict=True):
        caches.append(block[offset : offset + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape))
        offset += size
    return caches


def _check_contract(graph: Path, session: Any, spec: ModelSpec) -> None:
    """Compare the graph's inputs and outputs with the manifest, so that a wrong one is named before the first pass."""
    kv = "tensor(float16)" if spec.kv_dtype == "float16" else "tensor(float)"
    inputs: dict[str, tuple[str, list[int | None]]] = {
        "input_ids": ("tensor(int64)", [1, None]),
        "position_ids": ("tensor(int64)", [1, None]),
        "seqlens_k": ("tensor(int32)", [1]),
        "total_sequence_length": ("tensor(int32)", []),
        "logit_rows": ("tensor(int64)", [None]),
    }
    for window in {layer.window for layer in spec.layers} | {None}:
        inputs[bias_name(window)] = ("tensor(float)", [1, 1, None, None])
    outputs: dict[str, tuple[str, list[int | None]]] = {"logits": ("tensor(float)", [1, None, spec.vocab_size])}
    if spec.hidden_states:
        outputs["hidden_states"] = ("tensor(float)", [1, None, spec.hidden_states])
    for index, layer in enumerate(spec.layers):
        for part, dim in (("key", layer.key_dim), ("value", layer.value_dim)):
            inputs[f"past_key_values.{index}.{part}"] = outputs[f"present.{index}.{part}"] = (kv, [1, layer.heads, None, dim])
    for kind, wanted, found in (("input", inputs, session.get_inputs()), ("output", outputs, session.get_outputs())):
        have = {item.name: item for item in found}
        for name, (dtype, shape) in wanted.items():
            if name not in have:
                raise BundleError(f"{graph}: the graph has no {kind} {name}, which the manifest calls for; export the bundle again")
            dims = have[name].shape
            fits = len(dims) == len(shape) and all(
                not isinstance(dim, int) or want is None or dim == want for dim, want in zip(dims, shape, strict=True)
            )
            if have[name].type != dtype or not fits:
                expected = ["any" if want is None else want for want in shape]
                found_type = have[name].type
                raise BundleError(f"{graph}: {kind} {name} is {found_type} {dims}, the manifest says {dtype} {expected}; export it again")
        if kind == "input" and (extra := sorted(have.keys() - wanted.keys())):
            raise BundleError(f"{graph}: the graph has an input {extra[0]} that the manifest does not know; export the bundle again")
