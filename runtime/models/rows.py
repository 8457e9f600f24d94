"""The rows of a model's KV cache, and what can be done to them besides running the model.

The cache is one zeroed block of memory. Where the graph gives the hidden states that a draft head reads, each row has its own
beside it (``features``), and a row of a head has the token that it took (``taken``). Verbs:

    keep_common(context)     keep what a new context shares with the cache
    keep(length)             roll back: fewer rows are valid; the rest is overwritten by the next pass
    keep_path(start, rows)   of the rows from ``start`` on keep only these, moved together (a branch of a tree)

Layers with a window need the last rows only. Their buffers have room for all of them, so that a row is at the same place in every layer,
but the memory of rows that are ``hold`` rows or more behind the window goes back to the system while the text grows. They are zeros then,
which nothing can tell from what they were, since the bias hides them. A rollback that would bring them into sight again keeps no row.

Letters: S new tokens in a pass, C rows of capacity, F width of the hidden states.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import itertools
import math
import mmap
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgespec.errors import CapacityError
from edgespec.manifest import ModelSpec
from edgespec.runtime.memory.measure import discard
from edgespec.runtime.models.kv import KV_TYPES, layer_bytes

HOLD = 256  # rows behind a window that stay: more than a round rolls back, and than the self-test, 128 and a few
STEP = 64  # rows that are let go at once
MASKED = -1e9  # attention bias of a row that must not be seen: exp() of it is exactly 0
HALF_MASKED = -1e4  # the same where 16-bit floats are added: they have it, and exp() of it is 0 where scores are below thousands

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


class Rows(abc.ABC):
    """A KV cache of ``capacity`` rows, of which the first ``length`` are valid, and a model that can be run on it."""

    max_pass: int
    """Most tokens in one pass."""
    chunk: int
    """Most tokens of a prompt to run in one pass."""
    passes: int
    run_seconds: float
    """Time inside ONNX Runtime so far; what a caller measures beyond it is ours."""
    sessions: list[Any]
    hold: int | None = None
    """Rows behind the windows of layers that stay in memory; None for all."""
    trees_apart = False
    """Whether passes with a tree run in another graph than chains, which may round otherwise."""
    best: int | None = None
    """How many of a row's likeliest tokens the caller needs logits of, None for all; a model may give minus infinity for the others."""
    made_first_step = False
    """Whether the last pass made the first step of a draft head, too."""
    attends_alone: bool = True
    """Whether attention of a pass of one token has one row. False gives it a second, empty one (:meth:`can_pad`), which takes the place of
    one more row of the cache."""

    @property
    def can_pad(self) -> bool:
        """Whether ``attends_alone`` may be False."""
        return False

    @abc.abstractmethod
    def run(
        self,
        tokens: Sequence[int],
        rows: Sequence[int],
        parents: Sequence[int] | None = None,
        width: int | None = None,
        trunk: int | None = None,
        features: Floats | None = None,
    ) -> Floats:
        """Score ``tokens``, see :meth:`edgespec.runtime.models.model.Model.run`."""

    def __init__(self, spec: ModelSpec, capacity: int) -> None:
        self.spec = spec
        self.capacity = capacity
        self.tokens: list[int] = []
        """The tokens whose rows are valid, in order."""
        self._caches = allocate_caches(spec, capacity)
        wide = spec.hidden_states or 0
        self._features = zeroed(capacity * wide * 4)[: capacity * wide * 4].view(np.float32).reshape(1, 1, capacity, wide)
        self._first_features = self._features.ctypes.data  # once: to ask numpy behind a pass takes half of what binding takes
        heads = capacity if spec.features else 0
        self._took = zeroed(heads * 8)[: heads * 8].view(np.int64).reshape(1, 1, heads, 1)
        self._stores = [*self._caches, *([self._features] if spec.hidden_states else []), *([self._took] if heads else [])]
        """All that has one entry for each row of the cache, in axis 2."""
        self._gone: dict[int | None, int] = {layer.window: 0 for layer in spec.layers if layer.window is not None}
        """How many of the first rows are no longer there in layers with this window."""

    @property
    def length(self) -> int:
        """Number of valid rows."""
        return len(self.tokens)

    @property
    def features(self) -> Floats:
        """Hidden states of the valid rows, float32 [length, F]; a view that the next pass extends. F is 0 if the graph gives none."""
        return self._features[0, 0, : self.length]

    def address_of_features(self, row: int) -> int:
        """Where the hidden states of ``row``, valid or not, are in memory; those of the rows behind it follow."""
        return self._first_features + 4 * (self.spec.hidden_states or 0) * row

    @property
    def taken(self) -> npt.NDArray[np.int64]:
        """Of a draft head with a cache: the token that each valid row took, int64 [length]. The row bears the name of the token before it,
        whose feature it took, too. A view that the next pass extends."""
        return self._took[0, 0, : self.length, 0]

    def keep(self, length: int) -> None:
        """Roll back to the first ``length`` rows; to none where a window's rows before them are gone."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot keep {length} of {self.length} cache rows")
        if any(gone > _first_seen(length, window) for window, gone in self._gone.items()):
            length = 0
        del self.tokens[length:]
        if not length:
            self._gone = dict.fromkeys(self._gone, 0)

    def keep_common(self, context: Sequence[int]) -> None:
        """Keep the rows that belong to the first tokens of ``context``, but not all of it: one is left to run."""
        most = min(self.length, len(context) - 1)
        self.keep(next((index for index in range(most) if self.tokens[index] != context[index]), max(most, 0)))

    def keep_path(self, start: int, rows: Sequence[int]) -> None:
        """Keep the first ``start`` rows and of those after it only ``rows`` (offsets from ``start``, ascending)."""
        count = len(rows)
        if list(rows) != list(range(count)):
            if start + max(rows) >= self.length or any(b <= a for a, b in itertools.pairwise(rows)):
                raise ValueError(f"rows {list(rows)} after {start} are not ascending rows of a cache of {self.length}")
            chosen = np.asarray(rows) + start
            tokens = [self.tokens[row] for row in chosen]
            del self.tokens[start:]  # Whatever interrupts the moving, no row is valid whose content is another token's.
            self._move_rows(start, chosen)
            self.tokens.extend(tokens)
        self.keep(start + count)

    def _move_rows(self, start: int, chosen: npt.NDArray[np.int64]) -> None:
        """Copy the rows ``chosen`` to where they follow ``start`` others."""
        for store in self._stores:
            store[:, :, start : start + len(chosen)] = store[:, :, chosen]

    def cache_rows(self, start: int, stop: int) -> list[npt.NDArray[Any]]:
        """Copies of cache rows, key and value of each layer in turn, [1, H, stop - start, D] each, of the hidden states,
        [1, 1, stop - start, F], if there are any, and of a head of the tokens that it took, [1, 1, stop - start, 1]. Of layers with a
        window there are fewer, if the first ones are gone."""
        first = [max(start, self._gone.get(window, 0)) for window in self._store_windows()]
        return [store[:, :, begin:stop].copy() for store, begin in zip(self._stores, first, strict=True)]

    def restore_rows(self, tokens: Sequence[int], rows: Sequence[npt.NDArray[Any]]) -> bool:
        """Make ``rows``, as :meth:`cache_rows` gave them for ``tokens``, the valid ones. False if they do not fit."""
        count, missing = len(tokens), dict.fromkeys(self._gone, 0)
        if count > self.capacity or len(rows) != len(self._stores):
            return False
        for store, window, array in zip(self._stores, self._store_windows(), rows, strict=True):
            there = array.shape[2] if array.ndim == 4 else 0
            if array.dtype != store.dtype or array.shape != (1, store.shape[1], min(there, count), store.shape[3]):
                return False
            if count - there > _first_seen(count, window):
                return False
            if window in missing:
                missing[window] = max(missing[window], count - there)
        self.keep(0)
        for store, array in zip(self._stores, rows, strict=True):
            store[:, :, count - array.shape[2] : count] = array
        self.tokens.extend(tokens)
        self._gone = missing
        return True

    def trim(self) -> None:
        """Give the memory of rows that are not valid back to the system; they are zeros again."""
        for store in self._stores:
            for head in store[0]:
                discard(head[self.length :])

    def _let_go(self) -> None:
        """Give back the memory of rows that are far enough behind the windows of their layers."""
        if self.hold is None:
            return
        for window, gone in self._gone.items():
            free = _first_seen(self.length, window) - self.hold
            if free - gone >= STEP:
                for store, of in zip(self._stores, self._store_windows(), strict=True):
                    for head in store[0] if of == window else ():
                        discard(head[:free])  # from the first one on, so that no page between two steps is left
                self._gone[window] = free

    def _store_windows(self) -> list[int | None]:
        """The window of each store's layer, None for all that has none."""
        others = bool(self.spec.hidden_states) + bool(self.spec.features)
        windows = [layer.window for layer in self.spec.layers for _ in ("key", "value")] + [None] * others
        return windows[len(windows) - len(self._stores) :]  # a model with its caches elsewhere has the others alone

    def check_room(self, width: int, rows: int) -> None:
        """Refuse a pass of ``width`` tokens that takes ``rows`` rows of the cache where it does not fit behind the valid ones.

        Raises:
            CapacityError: it does not.
        """
        if width > self.max_pass or self.length + rows > self.capacity:
            raise CapacityError(f"a pass of {width} tokens does not fit: {self.length} of {self.capacity} cache rows are in use")

    def tree(self, parents: Sequence[int], width: int, trunk: int | None) -> Hidden:
        """Who sees whom when ``width`` new tokens, the last of them perhaps padding, extend a tree of nodes with these
        ``parents`` behind ``trunk`` rows, as in :meth:`edgespec.runtime.models.model.Model.run`."""
        trunk = self.length if trunk is None else trunk
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
        return Hidden(trunk, ~sees[before:], positions)


def cache_name(index: int) -> str:
    """What a graph's past and present of the cache ``index``, of those of :func:`allocate_caches`, are called behind the first dot."""
    return f"{index // 2}.{'value' if index % 2 else 'key'}"


def bias_name(window: int | None) -> str:
    """The graph input with the bias for layers of this window."""
    return "attention_bias" if window is None else f"attention_bias_window_{window}"


def fill_bias(bias: Floats, positions: npt.NDArray[np.int64], hidden: Hidden | None, window: int | None, masked: float = MASKED) -> None:
    """Set ``bias`` [S, T] to ``masked`` where a new row must not see another, else to 0.

    Args:
        bias: the last S of the T rows are the new ones.
        positions: of the new rows.
        hidden: of a tree; None for a chain, whose rows nothing hides from later ones but a window.
        window: number of positions that a row sees, its own included; None for all.
        masked: what is added to the scores of rows that must not be seen.
    """
    bias.fill(0.0)
    width, total = bias.shape
    trunk = total - width if hidden is None else hidden.trunk
    if hidden is not None:
        bias[:, trunk:][hidden.mask] = masked
    if window is not None:
        # Rows of the trunk are at the position of their index; in a tree several rows share one.
        oldest = positions - window + 1
        bias[:, :trunk][np.arange(trunk) < oldest[:, None]] = masked
        bias[:, trunk:][(positions if hidden is None else hidden.positions) < oldest[:, None]] = masked


def zeroed(size: int) -> npt.NDArray[np.uint8]:
    """Zeroed bytes of which untouched pages cost nothing, not even to read, and which a forked process does not share.

    np.zeros would ask for huge pages, and a cache of which only the first rows are used would then be resident as a whole.

    Raises:
        CapacityError: there is no memory for them.
    """
    try:
        return _mapped(size)
    except (OSError, ValueError, OverflowError) as error:
        raise CapacityError(f"cannot allocate {size / 2**20:.0f} MiB for cache rows; choose a smaller context") from error


def _mapped(size: int) -> npt.NDArray[np.uint8]:
    if not hasattr(mmap, "MAP_PRIVATE"):  # Windows, whose mappings without a name are private
        return np.frombuffer(mmap.mmap(-1, max(size, 1)), np.uint8)[:size]
    block = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            block.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(block, np.uint8)[:size]


def allocate_caches(spec: ModelSpec, capacity: int, texts: int = 1) -> list[npt.NDArray[Any]]:
    """Key and value of each layer in turn, [texts, H, C, D] each.

    Raises:
        CapacityError: there is no memory for them.
    """
    kind = KV_TYPES[spec.kv_dtype]
    dtype = kind.element
    shapes = [(texts, layer.heads, capacity, kind.columns(dim)) for layer in spec.layers for dim in (layer.key_dim, layer.value_dim)]
    sizes = [-(-math.prod(shape) * dtype.itemsize // 64) * 64 for shape in shapes]
    block, caches, offset = zeroed(sum(sizes)), [], 0
    for shape, size in zip(shapes, sizes, strict=True):
        caches.append(block[offset : offset + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape))
        offset += size
    return caches


def hold_for(spec: ModelSpec) -> int | None:
    """The rows behind windows that a model holds, None for all of them, as of draft heads, whose rows follow the target's.

    Over float weights a near-tie may be decided by computing all rows since the prompt again (:mod:`edgespec.runtime.recheck`), and
    systems other than Linux take no part of a mapping back.
    """
    windowed = any(layer.window for layer in spec.layers) and not spec.reads
    return HOLD if windowed and spec.quantisation.method != "none" and sys.platform.startswith("linux") else None


def cache_bytes(spec: ModelSpec, rows: int, hold: int | None = None, chunk: int = 0) -> int:
    """Most bytes that a cache of so many rows has in memory, with its hidden states and what a head took, when passes have at most
    ``chunk`` tokens."""
    total = (4 * (spec.hidden_states or 0) + (8 if spec.features else 0)) * rows
    for layer in spec.layers:
        there = rows if hold is None or layer.window is None else min(rows, layer.window + hold + STEP + chunk)
        total += layer_bytes(layer, spec.kv_dtype) * there
    return total


def _first_seen(length: int, window: int | None) -> int:
    """The first of ``length`` rows that one behind them sees in a layer with this window."""
    return 0 if window is None else max(0, length - window + 1)
