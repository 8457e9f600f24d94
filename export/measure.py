"""What is measured of a bundle where it is made: the cost of a pass by width, and the widths whose results are equal.

Other machines measure their own (the runtime does so when it first needs it); these figures say what to expect.
"""

from __future__ import annotations

from pathlib import Path

import onnxruntime

from edgespec.manifest import Exactness, ModelSpec
from edgespec.runtime.cores import default_threads
from edgespec.runtime.exactness import find_equal_widths
from edgespec.runtime.models.model import Model
from edgespec.runtime.providers.session import DEFAULT_PROVIDERS
from edgespec.runtime.tuning.cost import WIDTHS, measure_widths
from edgespec.runtime.tuning.machine import machine_name

CAPACITY = 512


def measure_target(folder: Path, spec: ModelSpec, vocabulary: int) -> tuple[dict[str, float], Exactness]:
    """Milliseconds of a pass by its width, and the result of the self-test.

    Args:
        folder: where the graph is.
        spec: the target.
        vocabulary: the tokenizer's number of tokens; the self-test draws from these.
    """
    model = Model(folder / spec.graph, spec, capacity=min(spec.capacity, CAPACITY), threads=default_threads(), providers=DEFAULT_PROVIDERS)
    widths = [width for width in WIDTHS if width <= min(spec.max_width, model.max_pass)]
    costs, _ = measure_widths(model, widths)
    found = find_equal_widths(model, vocabulary)
    exactness = Exactness(found.grade, found.widths, machine_name(), onnxruntime.__version__)
    return {str(width): round(ms, 3) for width, ms in costs.items()}, exactness
