"""A model as graphs of fixed shapes, one for each width of a pass: what compilers for NPUs take.

Such a graph has the cache of C rows as an input and gives only the new rows, which are copied into it here. A row that is not
kept was never anywhere else, so rollback is only a number as it is with :class:`edgespec.runtime.models.model.Model`, and the verbs
are the same. Which rows of the cache are valid, and who sees whom among the new ones, is all in one mask.

Letters: S new tokens of a graph, R rows of it that get logits, C rows of cache, V vocabulary, F width of the hidden states.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgespec.errors import BundleError, CapacityError
from edgespec.manifest import ModelSpec, StaticGraph, StaticProfile
from edgespec.runtime.models.kv import KV_TYPES
from edgespec.runtime.models.rows import HALF_MASKED, Floats, Hidden, Rows, bias_name, cache_name, fill_bias
from edgespec.runtime.providers.placement import Placement
from edgespec.runtime.providers.providers import is_emulated, provider
from edgespec.runtime.providers.session import failure, in_main_memory, make_session

SHARE_CONTEXTS = "ep.share_ep_contexts"


class StaticModel(Rows):
    """Sessions of the graphs of ``profile``, over one KV cache. ``spec`` is what :mod:`edgespec.runtime.providers.profiles` makes of it."""

    def __init__(self, folder: Path, spec: ModelSpec, profile: StaticProfile, place: Placement, *, alone: bool = True) -> None:
        super().__init__(spec, profile.capacity)
        self.passes = 0
        self.run_seconds = 0.0
        self.max_pass = max(graph.width for graph in profile.graphs)
        self.chunk = self.max_pass
        alone = alone and len(profile.graphs) == 1
        entries = _entries(folder, profile, place)
        self._graphs = [_Graph(folder / graph.graph, graph, self, place, alone, entries) for graph in profile.graphs]
        self.sessions = [graph.session for graph in self._graphs]

    def run(
        self,
        tokens: Sequence[int],
        rows: Sequence[int],
        parents: Sequence[int] | None = None,
        width: int | None = None,
        trunk: int | None = None,
        features: Floats | None = None,
    ) -> Floats:
        """Score ``tokens`` as :meth:`edgespec.runtime.models.model.Model.run` does, in the narrowest graph that has room for them.

        A chain for which no graph has room, in tokens or in logits, is scored in several passes. A draft head, which would take
        ``features``, has no graphs of fixed shapes.
        """
        if features is not None:
            raise ValueError("graphs of fixed shapes take no features")
        if self.length + len(tokens) > self.capacity:
            raise CapacityError(f"a pass of {len(tokens)} tokens does not fit: {self.length} of {self.capacity} cache rows are in use")
        wanted = max(len(tokens), width or 0)
        fitting = (graph for graph in self._graphs if graph.shape.width >= wanted and graph.shape.rows >= len(rows))
        graph = next(fitting, None)
        if graph is not None:
            return self._pass(graph, tokens, rows, parents, None if parents is None else trunk)
        if parents is not None:
            raise CapacityError(f"a tree of {len(tokens)} tokens does not fit into a pass of at most {self.spec.max_width}")
        return self._in_parts(tokens, rows)

    def _in_parts(self, tokens: Sequence[int], rows: Sequence[int]) -> Floats:
        """Passes of the widest graph that gives logits for each of its rows."""
        step = self.spec.max_width
        logits = np.zeros((len(rows), self.spec.vocab_size), np.float32)
        for start in range(0, len(tokens), step):
            inside = [index for index, row in enumerate(rows) if start <= row < start + step]
            logits[inside] = self.run(tokens[start : start + step], [rows[index] - start for index in inside])
        return logits

    def _pass(self, graph: _Graph, tokens: Sequence[int], rows: Sequence[int], parents: Sequence[int] | None, trunk: int | None) -> Floats:
        count, start = len(tokens), self.length
        hidden = self.tree(range(-1, count - 1) if parents is None else parents, graph.shape.width, trunk)
        graph.fill(tokens, rows, hidden, start)
        started = time.perf_counter()
        graph.run(count, start)
        self.run_seconds += time.perf_counter() - started
        self.passes += 1
        for store, new in zip(self._stores, graph.new_rows, strict=True):
            store[:, :, start : start + count] = new[:, :, :count]
        self.tokens.extend(tokens)
        return graph.logits[0, : len(rows)]


class _Graph:
    """One graph with its buffers, all of fixed shape, so that everything is bound once."""

    def __init__(
        self, path: Path, shape: StaticGraph, model: StaticModel, place: Placement, alone: bool, entries: Mapping[str, str]
    ) -> None:
        spec, width, capacity = model.spec, shape.width, model.capacity
        self.shape = shape
        self._path = path
        self._capacity = capacity
        self.session = make_session(path, place.threads, place.providers, alone, place.strict, entries)
        self._tokens = np.zeros((1, width), np.int64)
        self._positions = np.zeros((1, width), np.int64)
        self._rows = np.zeros(shape.rows, np.int64)
        self._biases: dict[int | None, Floats] = {
            window: np.zeros((1, 1, width, capacity + width), np.float32) for window in {layer.window for layer in spec.layers} | {None}
        }
        inputs: dict[str, npt.NDArray[Any]] = {"input_ids": self._tokens, "position_ids": self._positions, "logit_rows": self._rows}
        inputs |= {bias_name(window): bias for window, bias in self._biases.items()}
        self.logits = np.zeros((1, shape.rows, spec.vocab_size), np.float32)
        outputs = {"logits": self.logits}
        self.new_rows: list[npt.NDArray[Any]] = []
        """The new rows of each store of the model, in its order."""
        for index, cache in enumerate(model._caches):
            name = cache_name(index)
            inputs[f"past_key_values.{name}"] = cache
            self.new_rows.append(np.zeros((1, cache.shape[1], width, cache.shape[3]), cache.dtype))
            outputs[f"present.{name}"] = self.new_rows[-1]
        if spec.hidden_states:
            outputs["hidden_states"] = np.zeros((1, width, spec.hidden_states), np.float32)
            self.new_rows.append(outputs["hidden_states"][None])
        _check_shapes(path, "input", self.session.get_inputs(), inputs)
        _check_shapes(path, "output", self.session.get_outputs(), outputs)
        self._inputs, self._outputs = inputs, outputs
        self._binding = self._bind() if in_main_memory(place.providers) else None

    def _bind(self) -> Any:
        binding = self.session.io_binding()
        for name, array in self._inputs.items():
            binding.bind_input(name, "cpu", 0, array.dtype.type, list(array.shape), array.ctypes.data)
        for name, array in self._outputs.items():
            binding.bind_output(name, "cpu", 0, array.dtype.type, list(array.shape), array.ctypes.data)
        return binding

    def fill(self, tokens: Sequence[int], rows: Sequence[int], hidden: Hidden, start: int) -> None:
        """Set the inputs for a pass of ``tokens`` behind ``start`` valid rows. What is left of the width is padding."""
        count, width, capacity = len(tokens), self.shape.width, self._capacity
        self._tokens[0, :count] = tokens
        self._tokens[0, count:] = tokens[-1]
        positions = hidden.positions[start - hidden.trunk :]
        np.minimum(positions, capacity - 1, out=self._positions[0])  # of the padding there may be more than positions
        self._rows[:] = 0
        self._rows[: len(rows)] = rows
        seen = np.empty((width, start + width), np.float32)
        for window, bias in self._biases.items():
            fill_bias(seen, positions, hidden, window, HALF_MASKED)
            bias[0, 0, :, :start] = seen[:, :start]
            bias[0, 0, :, start:capacity] = HALF_MASKED
            bias[0, 0, :, capacity:] = seen[:, start:]

    def run(self, count: int, start: int) -> None:
        try:
            self.session.run_with_iobinding(self._binding or self._bind())
        except Exception as error:  # onnxruntime's exceptions have no common base of their own
            raise failure(f"{self._path}: a pass of {count} tokens after {start} failed", error) from error


def _entries(folder: Path, profile: StaticProfile, place: Placement) -> dict[str, str]:
    """What sessions of compiled graphs have to be told.

    Raises:
        BundleError: they are compiled for another provider than the model was put on.
    """
    compiled = profile.compiled
    if compiled is None:
        return {}
    if place.providers[0].name != compiled.provider:
        name = provider(compiled.provider).short
        raise BundleError(f"{folder}: its {place.profile} graphs are compiled for {name}; run them with --providers {name}")
    if compiled.shared and is_emulated(compiled.provider):  # Its process would end in a segmentation fault.
        raise BundleError(f"{folder}: the emulator cannot load graphs that share a binary; compile them with --apart, or take the chip")
    return {SHARE_CONTEXTS: "1"} if compiled.shared else {}


def _check_shapes(graph: Path, kind: str, found: Sequence[Any], wanted: dict[str, npt.NDArray[Any]]) -> None:
    """Compare the graph's inputs or outputs with the manifest, so that a wrong one is named before the first pass."""
    types = {kind.element.name: kind.tensor for kind in KV_TYPES.values()} | {"int64": "tensor(int64)"}
    have = {item.name: (item.type, list(item.shape)) for item in found}
    want = {name: (types[array.dtype.name], list(array.shape)) for name, array in wanted.items()}
    for name in sorted(have.keys() | want.keys()):
        if have.get(name) != want.get(name):
            shown = {True: "there is none", False: "{} {}"}
            texts = [shown[item is None].format(*(item or ())) for item in (have.get(name), want.get(name))]
            raise BundleError(f"{graph}: {kind} {name}: {texts[0]}, by the manifest {texts[1]}; export the bundle again")
