"""Draft heads that rank tokens for each row of hidden states by itself (Medusa). They keep nothing between passes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgespec.errors import BundleError, RuntimeFailure
from edgespec.manifest import ModelSpec
from edgespec.runtime.models.rows import Floats
from edgespec.runtime.providers.session import Choice, failure, make_session


class RowHeads:
    """A session of a graph ``features`` [1, R, F] -> ``tokens`` [1, R, heads, ranks].

    Raises:
        BundleError: the graph is not the one that the manifest describes.
        RuntimeFailure: ONNX Runtime refuses it.
    """

    def __init__(self, graph: Path, spec: ModelSpec, *, threads: int, providers: Sequence[Choice | str], strict: bool = False) -> None:
        self.spec = spec
        self.passes = 0
        self.run_seconds = 0.0
        self._graph = graph
        self._session = make_session(graph, threads, providers, alone=False, strict=strict)
        inputs = {item.name: item.shape for item in self._session.get_inputs()}
        outputs = {item.name: item.shape for item in self._session.get_outputs()}
        shape = outputs.get("tokens") or []
        fits = list(inputs) == ["features"] and inputs["features"][2:] == [spec.features]
        if not fits or len(shape) != 4 or not all(isinstance(dim, int) for dim in shape[2:]):
            raise BundleError(f"{graph}: not the graph of heads over rows that the manifest describes; export the bundle again")
        self.heads, self.ranks = int(shape[2]), int(shape[3])
        if spec.accuracy is not None and [len(ranks) for ranks in spec.accuracy] != [self.ranks] * self.heads:
            raise BundleError(f"{graph}: has {self.heads} heads of {self.ranks} ranks, the manifest's accuracy has others; export it again")

    def run(self, features: Floats) -> npt.NDArray[np.int64]:
        """Tokens [R, heads, ranks], the likeliest first, for rows of hidden states [R, F].

        Raises:
            RuntimeFailure: ONNX Runtime refuses the pass, or an id is none of the vocabulary; OutOfMemory where that is why.
        """
        given = np.ascontiguousarray(features, np.float32)
        found = np.zeros((len(given), self.heads, self.ranks), np.int64)
        binding = self._session.io_binding()
        binding.bind_input("features", "cpu", 0, np.float32, [1, *given.shape], given.ctypes.data)
        binding.bind_output("tokens", "cpu", 0, np.int64, [1, *found.shape], found.ctypes.data)
        started = time.perf_counter()
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:  # onnxruntime's exceptions have no common base of their own
            raise failure(f"{self._graph}: a pass over {len(features)} rows failed", error) from error
        self.run_seconds += time.perf_counter() - started
        self.passes += 1
        if found.size and (found.min() < 0 or found.max() >= self.spec.vocab_size):
            raise RuntimeFailure(f"{self._graph}: gives a token that the vocabulary does not have; the bundle is damaged")
        return found
