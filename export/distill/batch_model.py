"""The target with several KV caches: a pass adds a token to each of N texts.

Letters: N texts, C rows of capacity, V vocabulary, F width of the hidden states, H heads and D head size of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgespec.manifest import ModelSpec
from edgespec.runtime.models.rows import Floats, allocate_caches, cache_name
from edgespec.runtime.providers.session import DEFAULT_PROVIDERS, failure, make_session

Array = npt.NDArray[Any]


class BatchModel:
    """A session on the graph that :mod:`edgespec.export.distill.batch_graph` makes.

    Args:
        graph: the file.
        spec: of the model that it was made of.
        texts: most texts.
        threads: of a pass.
    """

    def __init__(self, graph: Path, spec: ModelSpec, *, texts: int, threads: int) -> None:
        self.spec = spec
        self.texts = texts
        self.capacity = 0
        self._graph = graph
        # Its threads do not spin between passes: another model scores beginnings meanwhile.
        self._session = make_session(graph, threads, DEFAULT_PROVIDERS, alone=False)
        self._caches: list[Array] = []
        # Inputs and outputs for as many texts as there can be. A binding for N of them uses the head of each.
        self._tokens = np.zeros(texts, np.int64)
        self._positions = np.zeros(texts, np.int64)
        self._seqlens = np.zeros(texts, np.int32)
        self._total = np.zeros((), np.int32)
        self._rows = np.arange(texts, dtype=np.int64)
        self._logits = np.zeros((texts, spec.vocab_size), np.float32)
        self._features = np.zeros((texts, spec.hidden_states or 0), np.float32)
        self._bindings: dict[int, Any] = {}

    def reserve(self, capacity: int) -> None:
        """Have at least so many rows in each cache; if there were fewer, what was in them is lost.

        Raises:
            CapacityError: there is no memory for them.
        """
        if capacity > self.capacity:
            self._caches = []
            self._caches = allocate_caches(self.spec, capacity, self.texts)
            self.capacity = capacity
            self._bindings.clear()

    def place(self, text: int, rows: Sequence[Array]) -> None:
        """Make ``rows``, key and value of each layer in turn, [1, H, n, D] each, the first ones of a text."""
        for cache, array in zip(self._caches, rows, strict=True):
            cache[text, :, : array.shape[2]] = array[0]

    def move(self, text: int, to: int, length: int) -> None:
        """Copy the first rows of a text's cache to another's."""
        for cache in self._caches:
            cache[to, :, :length] = cache[text, :, :length]

    def run(self, tokens: Sequence[int], lengths: Sequence[int]) -> tuple[Floats, Floats]:
        """Score a token of each of the first N texts.

        Args:
            tokens: N, one for each text.
            lengths: N, the rows that each text has before it.

        Returns:
            float32 logits [N, V] and hidden states [N, F], which the next pass overwrites.

        Raises:
            RuntimeFailure: ONNX Runtime refuses the pass.
        """
        count = len(tokens)
        self._tokens[:count] = tokens
        self._positions[:count] = self._seqlens[:count] = lengths
        self._total[...] = max(lengths) + 1
        if count not in self._bindings:
            self._bindings[count] = self._bind(count)
        try:
            self._session.run_with_iobinding(self._bindings[count])
        except Exception as error:  # onnxruntime's exceptions have no common base of their own
            raise failure(f"{self._graph}: a pass of {count} texts failed", error) from error
        return self._logits[:count], self._features[:count]

    def _bind(self, count: int) -> Any:
        binding = self._session.io_binding()

        def bind(where: Any, name: str, array: Array, *shape: int) -> None:
            where(name, "cpu", 0, array.dtype.type, list(shape), array.ctypes.data)

        bind(binding.bind_input, "input_ids", self._tokens, 1, count)
        bind(binding.bind_input, "position_ids", self._positions, 1, count)
        bind(binding.bind_input, "seqlens_k", self._seqlens, count)
        bind(binding.bind_input, "total_sequence_length", self._total)
        bind(binding.bind_input, "logit_rows", self._rows, count)
        bind(binding.bind_output, "logits", self._logits, 1, count, self._logits.shape[1])
        if self.spec.hidden_states:
            bind(binding.bind_output, "hidden_states", self._features, 1, count, self._features.shape[1])
        for index, cache in enumerate(self._caches):
            name = cache_name(index)
            bind(binding.bind_input, f"past_key_values.{name}", cache, count, *cache.shape[1:])
            bind(binding.bind_output, f"present.{name}", cache, count, *cache.shape[1:])
        return binding
