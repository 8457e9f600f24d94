"""A model with its KV cache in a device's own memory: token ids go there, and logits of a few tokens come back.

Its graphs are those of a :class:`edgespec.manifest.Variant` with ``take`` and ``put``. ``graph`` may have no attention bias, for kernels
that are fast without one; passes with a tree then run in ``tree``, a session of its own that is made when the first one comes. What can
be done to rows of the cache is done where they are, by two small graphs: ``take`` copies rows out of it, ``put`` writes rows into it.

The verbs are those of :class:`edgespec.runtime.models.model.Model`. On the CPU's provider the device is main memory, which is how
tests run it.

Letters: S new tokens in a pass, R rows that get logits, C rows of capacity, T valid rows after the pass, V vocabulary, K tokens that the
graph names for each row with logits, D and H head size and heads of a layer.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgespec.errors import UsageError
from edgespec.manifest import ModelSpec, Variant
from edgespec.runtime.models.model import PREFILL_WIDTH, check_contract, contract
from edgespec.runtime.models.rows import HALF_MASKED, Floats, Hidden, Rows, bias_name, cache_name, fill_bias
from edgespec.runtime.ort import import_onnxruntime
from edgespec.runtime.providers.placement import Placement
from edgespec.runtime.providers.providers import provider
from edgespec.runtime.providers.session import failure, make_session

Array = npt.NDArray[Any]


class DeviceModel(Rows):
    """Sessions of ``variant`` over one KV cache. ``spec`` is that of :func:`edgespec.runtime.providers.profiles.profile_spec`."""

    def __init__(
        self,
        folder: Path,
        spec: ModelSpec,
        variant: Variant,
        place: Placement,
        *,
        capacity: int,
        alone: bool = True,
        chunk: int = PREFILL_WIDTH,
    ) -> None:
        super().__init__(spec, capacity)
        self.passes = 0
        self.run_seconds = 0.0
        self.chunk = min(capacity, chunk)
        self.max_pass = min(capacity, max(chunk, spec.max_width))
        self.trees_apart = variant.tree is not None
        self._folder, self._variant, self._place, self._alone = folder, variant, place, alone
        self._memory = _memory(place)
        runtime: Any = import_onnxruntime()
        if not hasattr(runtime, "OrtValue"):
            raise UsageError(f"--profile {place.profile}: needs the package onnxruntime, not its C library alone; pip install onnxruntime")
        self._names = [cache_name(index) for index in range(len(self._caches))]
        try:
            self._values = [runtime.OrtValue.ortvalue_from_numpy(cache, *self._memory) for cache in self._caches]
        except Exception as error:  # onnxruntime's exceptions have no common base of their own
            raise failure(f"{folder / variant.graph}: no KV cache of {capacity} tokens can be made on the device", error) from error
        self._stores = self._stores[len(self._caches) :]  # hidden states alone are in main memory
        self.sessions: list[Any] = []
        self._chains = self._open(variant.graph, trees=variant.tree is None)
        self._few = np.zeros((0, spec.vocab_size), np.float32)
        """Logits [R, V] of which only the tokens in ``_named`` [R, K] are not minus infinity."""
        self._named = np.zeros((0, variant.top or 0), np.int64)

    def _open(self, graph: str, trees: bool) -> _Graph:
        path = self._folder / graph
        session = make_session(path, self._place.threads, self._place.providers, self._alone, self._place.strict)
        check_contract(path, session, *contract(self.spec, trees=trees, bias_dtype=self.spec.kv_dtype))
        self.sessions.append(session)
        return _Graph(path, session, dict(zip(self._names, self._values, strict=True)))

    @functools.cached_property
    def _trees(self) -> _Graph:
        return self._chains if self._variant.tree is None else self._open(self._variant.tree, trees=True)

    def run(
        self,
        tokens: Sequence[int],
        rows: Sequence[int],
        parents: Sequence[int] | None = None,
        width: int | None = None,
        trunk: int | None = None,
        features: Floats | None = None,
    ) -> Floats:
        """Score ``tokens`` as :meth:`edgespec.runtime.models.model.Model.run` does. A draft head, which would take ``features``, has
        no such profile."""
        if features is not None:
            raise ValueError("a model with its cache on a device takes no features")
        count, start = len(tokens), self.length
        width = max(count, width or 0)
        total = start + width
        self.check_room(width, width)
        hidden = None if parents is None else self.tree(parents, width, trunk)
        graph = self._chains if hidden is None else self._trees
        positions = np.arange(start, total) if hidden is None else hidden.positions[start - hidden.trunk :]
        inputs: dict[str, Array] = {
            "input_ids": np.array([[*tokens, *[tokens[-1]] * (width - count)]], np.int64),
            "position_ids": np.ascontiguousarray(positions[None], np.int64),
            "seqlens_k": np.array([total - 1], np.int32),
            "total_sequence_length": np.array(total, np.int32),
            "logit_rows": np.array(rows, np.int64),
        }
        if graph is self._trees:
            inputs |= self._biases(positions, total, hidden)
        few = self.best is not None and self._variant.top is not None and self.best <= self._variant.top
        outputs = self._outputs(len(rows), width, few)
        started = time.perf_counter()
        try:
            graph.run(inputs, outputs)
        except Exception as error:  # onnxruntime's exceptions have no common base of their own
            raise failure(f"{graph.path}: a pass of {width} tokens after {start} failed", error) from error
        self.run_seconds += time.perf_counter() - started
        self.passes += 1
        self.tokens.extend(tokens)
        return self._spread(outputs) if few else outputs["logits"][0]

    def _biases(self, positions: Array, total: int, hidden: Hidden | None) -> dict[str, Array]:
        found = {}
        for window in {layer.window for layer in self.spec.layers} | {None}:
            bias = np.empty((len(positions), total), np.dtype(self.spec.kv_dtype))
            fill_bias(bias, positions, hidden, window, HALF_MASKED)
            found[bias_name(window)] = bias[None, None]
        return found

    def _outputs(self, rows: int, width: int, few: bool) -> dict[str, Array]:
        """Main memory for what a pass gives back."""
        found: dict[str, Array] = {}
        if few:
            found["top_logits"] = np.empty((1, rows, self._named.shape[1]), np.float32)
            found["top_ids"] = np.empty((1, rows, self._named.shape[1]), np.int64)
        else:
            found["logits"] = np.empty((1, rows, self.spec.vocab_size), np.float32)
        if self.spec.hidden_states:
            found["hidden_states"] = self._features[0, :, self.length : self.length + width]
        return found

    def _spread(self, outputs: Mapping[str, Array]) -> Floats:
        """Rows of logits [R, V] with those that came back, and minus infinity elsewhere. Only what changes is written."""
        ids, logits = outputs["top_ids"][0], outputs["top_logits"][0]
        rows = len(ids)
        if rows > len(self._few):
            self._few = np.full((rows, self.spec.vocab_size), -np.inf, np.float32)
            self._named = np.zeros((rows, ids.shape[1]), np.int64)
        np.put_along_axis(self._few[:rows], self._named[:rows], -np.inf, axis=1)
        np.put_along_axis(self._few[:rows], ids, logits, axis=1)
        self._named[:rows] = ids
        return self._few[:rows]

    @functools.cached_property
    def _take(self) -> Any:
        return self._row_session(self._variant.take)

    @functools.cached_property
    def _put(self) -> Any:
        return self._row_session(self._variant.put)

    def _row_session(self, graph: str | None) -> Any:
        assert graph is not None
        # Not strict: what such a graph computes on the CPU is where rows are, not what is in them.
        return make_session(self._folder / graph, 1, self._place.providers, self._alone)

    def _taken(self, rows: Array, outputs: Sequence[Array] | None) -> Any:
        """Copy these rows of the cache into ``outputs``, arrays in main memory, or into new memory of the device; the binding."""
        binding = self._take.io_binding()
        binding.bind_input("rows", "cpu", 0, np.int64, list(rows.shape), rows.ctypes.data)
        for index, (name, value) in enumerate(zip(self._names, self._values, strict=True)):
            binding.bind_ortvalue_input(f"past_key_values.{name}", value)
            if outputs is None:
                binding.bind_output(f"taken.{name}", *self._memory)
            else:
                _bind_output(binding, f"taken.{name}", outputs[index])
        self._copy_rows(self._take, binding)
        return binding

    def _putting(self, start: int, count: int) -> Any:
        """A binding that writes ``count`` rows from ``start`` on, to which these are still to be bound, and memory that it refers to."""
        binding, kept = self._put.io_binding(), []
        for heads in sorted({layer.heads for layer in self.spec.layers}):
            place = np.zeros((1, heads, count, 3), np.int64)
            place[0, :, :, 1] = np.arange(heads)[:, None]
            place[0, :, :, 2] = np.arange(start, start + count)
            binding.bind_input(f"places_{heads}", "cpu", 0, np.int64, list(place.shape), place.ctypes.data)
            kept.append(place)
        for name, value in zip(self._names, self._values, strict=True):
            binding.bind_ortvalue_input(f"past_key_values.{name}", value)
            binding.bind_ortvalue_output(f"present.{name}", value)
        return binding, kept

    def _move_rows(self, start: int, chosen: Array) -> None:
        super()._move_rows(start, chosen)
        moved = self._taken(chosen, None).get_outputs()
        binding, _kept = self._putting(start, len(chosen))
        for name, value in zip(self._names, moved, strict=True):
            binding.bind_ortvalue_input(f"given.{name}", value)
        self._copy_rows(self._put, binding)

    def cache_rows(self, start: int, stop: int) -> list[Array]:
        found = [np.empty((1, cache.shape[1], stop - start, cache.shape[3]), cache.dtype) for cache in self._caches]
        if stop > start:
            self._taken(np.arange(start, stop), found)
        return [*found, *super().cache_rows(start, stop)]

    def restore_rows(self, tokens: Sequence[int], rows: Sequence[Array]) -> bool:
        count, layers = len(tokens), len(self._caches)
        kinds = [((1, cache.shape[1], count, cache.shape[3]), cache.dtype) for cache in self._caches]
        own = [np.ascontiguousarray(array) for array in rows[:layers]]
        if count > self.capacity or [(array.shape, array.dtype) for array in own] != kinds:
            return False
        self.keep(0)
        if count:
            binding, _kept = self._putting(0, count)
            for name, array in zip(self._names, own, strict=True):
                binding.bind_input(f"given.{name}", "cpu", 0, array.dtype.type, list(array.shape), array.ctypes.data)
            self._copy_rows(self._put, binding)
        return super().restore_rows(tokens, rows[layers:])

    def _copy_rows(self, session: Any, binding: Any) -> None:
        try:
            session.run_with_iobinding(binding)
        except Exception as error:
            raise failure(f"{self._folder / self._variant.graph}: rows of the KV cache cannot be copied on the device", error) from error


class _Graph:
    """A session with the cache bound to it, once and for all."""

    def __init__(self, path: Path, session: Any, caches: Mapping[str, Any]) -> None:
        self.path = path
        self._session = session
        self._caches = caches
        self._bindings: dict[tuple[str, ...], Any] = {}

    def run(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
        """Inputs are bound anew, since ONNX Runtime copies them to the device when they are bound."""
        binding = self._bindings.get(tuple(outputs)) or self._bind(tuple(outputs))
        for name, array in inputs.items():
            binding.bind_input(name, "cpu", 0, array.dtype.type, list(array.shape), array.ctypes.data)
        for name, array in outputs.items():
            _bind_output(binding, name, array)
        self._session.run_with_iobinding(binding)

    def _bind(self, outputs: tuple[str, ...]) -> Any:
        """One for each set of outputs: what is bound is computed and brought back."""
        binding = self._bindings[outputs] = self._session.io_binding()
        for name, value in self._caches.items():
            binding.bind_ortvalue_input(f"past_key_values.{name}", value)
            binding.bind_ortvalue_output(f"present.{name}", value)
        return binding


def _bind_output(binding: Any, name: str, array: Array) -> None:
    binding.bind_output(name, "cpu", 0, array.dtype.type, list(array.shape), array.ctypes.data)


def _memory(place: Placement) -> tuple[str, int]:
    """Kind and number of the device whose memory the cache is in, as ONNX Runtime's Python interface names them."""
    chosen = place.providers[0]
    number = dict(chosen.options).get("device_id", "0")
    if not number.isdecimal():
        raise UsageError(f"providers: device_id {number!r} of {chosen.name} is not the number of a device")
    return provider(chosen.name).memory, int(number)
