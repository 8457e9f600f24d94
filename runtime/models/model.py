"""One model of a bundle: its session, and the KV cache that it runs on.

The cache is one zeroed block of memory that the graph reads and writes in place (the past and present of a layer are
the same rows). Where the graph gives the hidden states that a draft head reads, each valid row has its own beside it
(``features``). ``run`` scores new tokens on top of the valid rows, and they are then valid too; what else can be done to
rows is in :mod:`edgespec.runtime.models.rows`.

Letters: S new tokens in a pass, P rows of attention (S, or 2 where a pass of one token must have the bits of wider ones),
R rows that get logits, C rows of capacity, T rows after the pass or more, V vocabulary, F width of the hidden states.

A draft head's graph takes a feature with each new token: the target's hidden states, or the head's own from an earlier pass
where there are none of the target yet. Where the two differ in width they are two inputs, one of them empty.

ONNX Runtime is given raw pointers into numpy memory, once for each S, P and R. A pass then changes a few numbers in place. The
attention bias, whose shape changes with T, is bound anew where it hides something (a tree, rows beyond a window), and else for
``SPAN`` rows at a time.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgespec.errors import BundleError
from edgespec.manifest import ModelSpec
from edgespec.runtime.models.kv import KV_TYPES
from edgespec.runtime.models.rows import Floats, Hidden, Rows, bias_name, cache_name, fill_bias, zeroed
from edgespec.runtime.providers.session import Choice, failure, in_main_memory, make_session

SPAN = 64  # rows of attention that one binding of a chain's bias is for
PREFILL_WIDTH = 128  # most new tokens in one pass; wider passes need more workspace and are no faster
Values = dict[str, tuple[str, list[int | None]]]
"""Inputs or outputs of a graph: ONNX Runtime's name of the type, and the shape with None for what may change."""


@dataclasses.dataclass
class Bound:
    """Inputs and outputs of passes of one size. ``span`` is how many rows the attention bias is for, 0 if it has to be bound again."""

    binding: Any
    span: int = 0


class Model(Rows):
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
        chunk: int = PREFILL_WIDTH,
        hold: int | None = None,
    ) -> None:
        super().__init__(spec, capacity)
        self.hold = hold
        self.passes = 0
        self.run_seconds = 0.0
        self.chunk = min(capacity, chunk)
        self.max_pass = min(capacity, max(chunk, spec.max_width))
        self._graph = graph
        self._session = make_session(graph, threads, providers, alone, strict)
        self.sessions = [self._session]
        check_contract(graph, self._session, *self._contract())
        # Inputs and outputs, as large as they can get. A binding of (S, R) uses the head of each.
        self._tokens = np.zeros(self.max_pass, np.int64)
        self._positions = np.zeros(max(self.max_pass, 2), np.int64)
        self._seqlens = np.zeros(1, np.int32)
        self._total = np.zeros(1, np.int32)
        self._rows = np.zeros(self.max_pass, np.int64)
        self._given = np.zeros((0, 0), np.float32)
        self._logits = np.zeros((0, spec.vocab_size), np.float32)
        # A chain needs no mask beyond the causal one. These zeros are never written, so they share one page of memory.
        self._no_bias = zeroed(max(self.max_pass, 2) * capacity * 4).view(np.float32)
        # One bias for layers that see everything (window None), and one for each window that layers have.
        self._windows = {layer.window for layer in spec.layers} | {None}
        self._biases = {window: np.zeros(0, np.float32) for window in self._windows}
        self._bindings: dict[tuple[int, int, int, int], Bound] = {}
        self._variant = 0
        """Which of several sets of inputs and outputs the next pass has, of a graph that has several."""
        self._binds_once = in_main_memory(providers)

    @property
    def can_pad(self) -> bool:
        return self.spec.pads_attention

    def trim(self) -> None:
        """Give back what the next pass can have again: spare rows of the cache, and buffers as large as the widest pass so far."""
        super().trim()
        self._logits = np.zeros((0, self.spec.vocab_size), np.float32)
        self._biases = {window: np.zeros(0, np.float32) for window in self._windows}
        self._bindings.clear()

    def run(
        self,
        tokens: Sequence[int],
        rows: Sequence[int],
        parents: Sequence[int] | None = None,
        width: int | None = None,
        trunk: int | None = None,
        features: Floats | None = None,
    ) -> Floats:
        """Score ``tokens`` on top of the valid rows.

        Args:
            tokens: the S' new tokens.
            rows: which of them get logits, R indices.
            parents: for a tree, the parent of each row behind the trunk, as an offset from the trunk's end and -1 for the
                trunk's last row; None for a chain.
            trunk: number of rows that the whole tree stands on, ``length`` if None. With less, the rows from it on are
                nodes of the tree that earlier passes scored, and ``parents`` begins with theirs: a tree can grow pass by pass.
            features: for a draft head, [S, F] of the target or the head's own; such a pass is not padded.
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
        attended = 2 if width == 1 and parents is None and not self.attends_alone else width
        total = start + attended
        self.check_room(width, attended)
        self._tokens[:width] = (*tokens, *[tokens[-1]] * (width - count))
        self._positions[:attended] = range(start, total)
        self._rows[: len(rows)] = rows
        self._seqlens[0] = total - 1
        hidden = None if parents is None else self.tree(parents, width, trunk)
        if hidden is not None:
            self._positions[:width] = hidden.positions[start - hidden.trunk :]
        bound = self._binding(width, attended, len(rows))
        binding = bound.binding
        self._bind_bias(bound, attended, total, hidden)
        if self.spec.hidden_states:
            shape = [1, width, self.spec.hidden_states]
            binding.bind_output("hidden_states", "cpu", 0, np.float32, shape, self.address_of_features(start))
        self._bind_features(binding, features, width)
        started = time.perf_counter()
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:  # onnxruntime's exceptions have no common base of their own
            raise failure(f"{self._graph}: a pass of {width} tokens after {start} failed", error) from error
        self.run_seconds += time.perf_counter() - started
        self.passes += 1
        if self.spec.features:
            self._took[0, 0, start : start + count, 0] = tokens
        self.tokens.extend(tokens)
        self._let_go()
        return self._logits[: len(rows)]

    def _contract(self) -> tuple[Values, Values]:
        """Inputs and outputs that the graph must have."""
        return contract(self.spec)

    def _bind_features(self, binding: Any, features: Floats | None, width: int) -> None:
        """Bind what a draft head is given."""
        wide = feature_inputs(self.spec)
        if not wide:
            return
        if features is None or len(features) != width or features.shape[1] not in wide.values():
            raise ValueError(f"a head's pass of {width} tokens needs features of width {', '.join(map(str, wide.values()))}")
        self._given = np.ascontiguousarray(features, np.float32)  # ours until the pass is over
        for name, columns in wide.items():
            rows = width if columns == features.shape[1] else 0
            binding.bind_input(name, "cpu", 0, np.float32, [1, rows, columns], self._given.ctypes.data)

    def _bind_bias(self, bound: Bound, attended: int, total: int, hidden: Hidden | None) -> None:
        """Bind what hides rows, and say how many there are.

        Where nothing is hidden both are for some passes more: binding is what costs most around a pass, behind which little of it is
        left in the processor's caches, and attention on the CPU goes by ``seqlens_k``.
        """
        lasts = self._binds_once and hidden is None and all(window is None or total <= window for window in self._windows)
        span = min(-(-total // SPAN) * SPAN, self.capacity) if lasts else total
        self._total[0] = span
        if lasts and span == bound.span:
            return
        bound.span = 0  # until all is bound, and behind a pass of which something is hidden
        for window in self._windows:
            bias = self._bias(window, attended, total, hidden)
            bound.binding.bind_input(bias_name(window), "cpu", 0, np.float32, [1, 1, attended, span], bias.ctypes.data)
        if lasts:
            bound.span = span

    def _bias(self, window: int | None, width: int, total: int, hidden: Hidden | None) -> Floats:
        """The bias [S, T] for layers with this window."""
        if hidden is None and (window is None or total <= window):
            return self._no_bias
        if self._biases[window].size < width * total:
            self._biases[window] = np.empty(width * self.capacity, np.float32)
        bias = self._biases[window][: width * total].reshape(width, total)
        fill_bias(bias, self._positions[:width], hidden, window)
        return bias

    def _binding(self, width: int, attended: int, rows: int) -> Bound:
        if rows > len(self._logits):
            # A larger output moves, so every binding that points at the old one goes.
            self._logits = np.zeros((rows, self.spec.vocab_size), np.float32)
            self._bindings.clear()
        if not self._binds_once:
            return Bound(self._bind(width, attended, rows))
        key = width, attended, rows, self._variant
        bound = self._bindings.get(key)
        if bound is None:
            bound = self._bindings[key] = Bound(self._bind(width, attended, rows))
        return bound

    def _bind(self, width: int, attended: int, rows: int) -> Any:
        binding = self._session.io_binding()

        def bind(name: str, array: npt.NDArray[Any], shape: list[int]) -> None:
            binding.bind_input(name, "cpu", 0, array.dtype.type, shape, array.ctypes.data)

        bind("input_ids", self._tokens, [1, width])
        bind("position_ids", self._positions, [1, attended])
        bind("seqlens_k", self._seqlens, [1])
        bind("total_sequence_length", self._total, [])
        bind("logit_rows", self._rows, [rows])
        binding.bind_output("logits", "cpu", 0, np.float32, [1, rows, self.spec.vocab_size], self._logits.ctypes.data)
        for index, cache in enumerate(self._caches):
            name = cache_name(index)
            bind(f"past_key_values.{name}", cache, list(cache.shape))
            binding.bind_output(f"present.{name}", "cpu", 0, cache.dtype.type, list(cache.shape), cache.ctypes.data)
        return binding


def feature_inputs(spec: ModelSpec) -> dict[str, int]:
    """Graph inputs with the features of a draft head and their widths: those of the target, and its own if these are of another
    width. Empty for other models."""
    if spec.features is None:
        return {}
    own = spec.hidden_states or spec.features
    return {"features": spec.features} | ({"own_features": own} if own != spec.features else {})


def contract(spec: ModelSpec, *, trees: bool = True, bias_dtype: str = "float32") -> tuple[Values, Values]:
    """Inputs and outputs that the manifest calls for. A graph that is not for ``trees`` has no attention bias."""
    bias, kv = KV_TYPES[bias_dtype].tensor, KV_TYPES[spec.kv_dtype]
    inputs: Values = {
        "input_ids": ("tensor(int64)", [1, None]),
        "position_ids": ("tensor(int64)", [1, None]),
        "seqlens_k": ("tensor(int32)", [1]),
        "total_sequence_length": ("tensor(int32)", []),
        "logit_rows": ("tensor(int64)", [None]),
    }
    for window in {layer.window for layer in spec.layers} | {None}:
        if trees:
            inputs[bias_name(window)] = (bias, [1, 1, None, None])
    for name, columns in feature_inputs(spec).items():
        inputs[name] = ("tensor(float)", [1, None, columns])
    outputs: Values = {"logits": ("tensor(float)", [1, None, spec.vocab_size])}
    if spec.hidden_states:
        outputs["hidden_states"] = ("tensor(float)", [1, None, spec.hidden_states])
    for index, layer in enumerate(spec.layers):
        for part, dim in (("key", layer.key_dim), ("value", layer.value_dim)):
            shape = [1, layer.heads, None, kv.columns(dim)]
            inputs[f"past_key_values.{index}.{part}"] = outputs[f"present.{index}.{part}"] = (kv.tensor, shape)
    return inputs, outputs


def check_contract(graph: Path, session: Any, inputs: Values, outputs: Values) -> None:
    """Compare the graph's inputs and outputs with those of the manifest, so that a wrong one is named before the first pass."""
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
