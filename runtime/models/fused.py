"""A target's graph that has a draft head's first step in it: what the head drafts next comes with the target's own pass.

Row i of the head takes the hidden states of token i and the token after it. Where that is known, in a prompt, the graph is told; else
it takes what the target finds likeliest, in every row with logits. Once a row turns out to be the last of the round, that is the token
which a greedy target commits, and the head's next token is there without a session of its own having run. Where the text takes
another one (sampling, penalties, grammars) the head's rows from there on are dropped, and its own graph makes them
(:class:`edgespec.runtime.drafters.eagle.EagleCache`).

The head's rows stand beside the target's, row for row, in the buffers of the head's own model, and follow them through rollback. A pass
computes them only while there are as many of them as of the target's: a head that fell behind has to catch up by itself first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgespec.manifest import Manifest, ModelSpec
from edgespec.runtime.models.kv import KV_TYPES
from edgespec.runtime.models.model import Bound, Model, Values, contract
from edgespec.runtime.models.rows import Floats, cache_name

NEXT = "next_ids"
PREFIX = "head."
PLAIN, WITH_HEAD = range(2)  # variants of a pass


class FirstSteps:
    """A head's rows while passes of a target make them.

    Attributes:
        head: the head's own model.
        wanted: whether passes are to make them.
    """

    def __init__(self, head: Model) -> None:
        self.head = head
        self.wanted = True
        self._context: Sequence[int] = ()
        self._row_of: dict[int, int] = {}
        """For rows of the head that the last pass gave logits for, which of these."""
        self.given = np.zeros(head.max_pass, np.int64)
        self.taken = np.zeros(head.max_pass, np.int64)
        self.logits: Floats = np.zeros((0, head.spec.vocab_size), np.float32)

    def begin(self, context: Sequence[int]) -> None:
        """Passes are about this text from now on; it is the loop's own list, which grows."""
        self._context = context
        self._row_of = {}

    def logits_of(self, row: int) -> Floats | None:
        """Logits [1, Vd] behind the head's ``row`` if the last pass made it; a view that the next pass overwrites."""
        index = self._row_of.get(row)
        return None if index is None else self.logits[index : index + 1]

    @property
    def made_by_last_pass(self) -> bool:
        """Whether there are logits of the last pass."""
        return bool(self._row_of)

    def forget(self) -> None:
        """There are no logits of the last pass, or other rows have taken the place of those that it made."""
        self._row_of = {}

    def prepare(self, start: int, count: int, rows: Iterable[int], width: int) -> None:
        """Set what the graph is given for a pass of ``count`` tokens, padded to ``width``, behind ``start`` rows."""
        known = min(max(len(self._context) - start - 1, 0), count)
        self.given[:known] = self._context[start + 1 : start + 1 + known]
        self.given[known:width] = 0
        for row in rows:
            if row >= known:
                self.given[row] = -1

    def made(self, start: int, tokens: Sequence[int], rows: Sequence[int]) -> None:
        """The pass has filled the head's buffers."""
        count = len(tokens)
        self.head._took[0, 0, start : start + count, 0] = self.taken[:count]
        self.head.tokens.extend(tokens)
        self._row_of = {start + row: index for index, row in enumerate(rows)}

    def keep(self, length: int) -> None:
        self.head.keep(min(length, self.head.length))

    def keep_path(self, start: int, rows: Sequence[int]) -> None:
        """As the target does with its rows."""
        if self.head.length <= start + max(rows, default=-1):
            self.keep(start)
            return
        self.head.keep_path(start, rows)
        self._row_of = {start + place: self._row_of[start + row] for place, row in enumerate(rows) if start + row in self._row_of}


class FusedModel(Model):
    """A target with the first step of a head; without one that is attached it is the target alone.

    Args:
        head: the head's entry in the manifest.
        others: arguments of :class:`edgespec.runtime.models.model.Model`.
    """

    def __init__(self, graph: Path, spec: ModelSpec, head: ModelSpec, **others: Any) -> None:
        self.head = head
        self._steps: FirstSteps | None = None
        super().__init__(graph, spec, **others)
        # What the graph is given in place of a head's buffers while the head is left out.
        kind = KV_TYPES[head.kv_dtype]
        shapes = [(1, layer.heads, 1, kind.columns(dim)) for layer in head.layers for dim in (layer.key_dim, layer.value_dim)]
        self._unused = [np.zeros(shape, kind.element) for shape in shapes]
        self._nothing = np.zeros(1, np.int64), np.zeros(1, np.float32)

    def has_inside(self, head: Model) -> bool:
        """Whether ``head`` is the one in the graph, with as many rows as the target."""
        own = self.head
        return (head.spec.layers, head.spec.vocab_size, head.spec.reads) == (own.layers, own.vocab_size, own.reads) and (
            head.capacity == self.capacity
        )

    def attach(self, head: Model) -> FirstSteps:
        """Let passes make the rows of ``head``, which has as many as the target.

        Raises:
            ValueError: it is not the head that is in the graph.
        """
        if not self.has_inside(head):
            raise ValueError("another head than the one in the graph")
        if self._steps is None or self._steps.head is not head:
            self._drop_bindings(WITH_HEAD)
            self._steps = FirstSteps(head)
        self._steps.wanted = True
        return self._steps

    def leave_out(self) -> None:
        """Make no rows of the head until it is attached again; those that there are follow the target's."""
        if self._steps is not None:
            self._steps.wanted = False

    def detach(self) -> None:
        """Do without a head from now on, and hold nothing of it."""
        self._drop_bindings(WITH_HEAD)
        self._steps = None

    def run(
        self,
        tokens: Sequence[int],
        rows: Sequence[int],
        parents: Sequence[int] | None = None,
        width: int | None = None,
        trunk: int | None = None,
        features: Floats | None = None,
    ) -> Floats:
        steps, start = self._steps, self.length
        self.made_first_step = steps is not None and steps.wanted and steps.head.length == start
        if steps is None or not self.made_first_step:
            self._variant = PLAIN
            if steps is not None:
                steps.forget()
            return super().run(tokens, rows, parents, width, trunk, features)
        self._variant = WITH_HEAD
        steps.forget()
        wide = max(len(tokens), width or 0)
        if wide <= self.max_pass:  # a wider one is refused below
            steps.prepare(start, len(tokens), rows, wide)
        logits = super().run(tokens, rows, parents, width, trunk, features)
        steps.made(start, tokens, rows)
        return logits

    def keep(self, length: int) -> None:
        super().keep(length)
        if self._steps is not None:
            self._steps.keep(self.length)

    def keep_path(self, start: int, rows: Sequence[int]) -> None:
        if self._steps is not None:
            self._steps.keep_path(start, rows)
        super().keep_path(start, rows)

    def trim(self) -> None:
        super().trim()
        if self._steps is not None:
            self._steps.logits = self._steps.logits[:0].copy()
            self._steps.forget()

    def _contract(self) -> tuple[Values, Values]:
        inputs, outputs = contract(self.spec)
        own_inputs, own_outputs = contract(self.head)
        inputs |= {f"{PREFIX}{name}": value for name, value in own_inputs.items() if name.startswith("past_key_values.")}
        inputs |= {NEXT: ("tensor(int64)", [1, None])}
        outputs |= {f"{PREFIX}{name}": value for name, value in own_outputs.items()}
        outputs |= {f"{PREFIX}{NEXT}": ("tensor(int64)", [1, None])}
        return inputs, outputs

    def _drop_bindings(self, variant: int) -> None:
        self._bindings = {key: bound for key, bound in self._bindings.items() if key[-1] != variant}

    def _binding(self, width: int, attended: int, rows: int) -> Bound:
        steps = self._steps if self._variant == WITH_HEAD else None
        if steps is not None and rows > len(steps.logits):
            steps.logits = np.zeros((rows, self.head.vocab_size), np.float32)
            self._drop_bindings(WITH_HEAD)
        bound = super()._binding(width, attended, rows)
        if steps is not None:
            shape = [1, width, steps.head.spec.hidden_states]
            place = steps.head.address_of_features(self.length)
            bound.binding.bind_output(f"{PREFIX}hidden_states", "cpu", 0, np.float32, shape, place)
        return bound

    def _bind(self, width: int, attended: int, rows: int) -> Any:
        binding = super()._bind(width, attended, rows)
        steps = self._steps if self._variant == WITH_HEAD else None
        ids, numbers = self._nothing
        given, taken, logits = (steps.given, steps.taken, steps.logits) if steps else (ids, ids, numbers)
        many, scored = (width, rows) if steps else (0, 0)
        binding.bind_input(NEXT, "cpu", 0, np.int64, [1, many], given.ctypes.data)
        self._bind_head(binding, NEXT, taken, [1, many])
        self._bind_head(binding, "logits", logits, [1, scored, self.head.vocab_size])
        if not steps:
            self._bind_head(binding, "hidden_states", numbers, [1, 0, self.head.hidden_states])
        for index, cache in enumerate(steps.head._caches if steps else self._unused):
            name = cache_name(index)
            past = f"{PREFIX}past_key_values.{name}"
            binding.bind_input(past, "cpu", 0, cache.dtype.type, list(cache.shape), cache.ctypes.data)
            self._bind_head(binding, f"present.{name}", cache, list(cache.shape))
        return binding

    def _bind_head(self, binding: Any, name: str, array: npt.NDArray[Any], shape: list[int | None]) -> None:
        binding.bind_output(f"{PREFIX}{name}", "cpu", 0, array.dtype.type, shape, array.ctypes.data)


def head_inside(manifest: Manifest) -> str | None:
    """The model whose first step can be had with the target's passes, by its name; None if there is none."""
    return next((name for name, spec in manifest.models.items() if spec.fused is not None), None)


def target_graph(manifest: Manifest) -> str:
    """The file of the graph that the target runs as."""
    inside = head_inside(manifest)
    fused = manifest.models[inside].fused if inside else None
    return fused or manifest.target.graph


def as_run(manifest: Manifest, budget: int | None, kv: str) -> Manifest:
    """The manifest without graphs that have a head in them where they are not used: under a memory budget, since the head is in memory
    twice with one, and where the target's KV cache is of another type than the one that the graph was made for."""
    return manifest if budget is None and kv == manifest.target.kv_dtype else without_fused(manifest)


def without_fused(manifest: Manifest) -> Manifest:
    """The same with every model in a graph of its own."""
    models = {name: dataclasses.replace(spec, fused=None) for name, spec in manifest.models.items()}
    return dataclasses.replace(manifest, models=models)
