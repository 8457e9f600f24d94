"""The KV cache of a draft model that grows a tree: behind the rows of the context stand those of nodes, as they were run."""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.runtime.drafters.context_window import ContextWindow
from edgespec.runtime.drafters.growth import Growth
from edgespec.runtime.models.model import Model
from edgespec.runtime.sampling.processors import Floats

NODES = 32  # rows of a tree that there is room for behind the context


class TreeCache:
    """Follows the text: rows of nodes that it has come to are moved behind those of the context, and need no second pass."""

    own_ids = None

    def __init__(self, model: Model) -> None:
        self.model = model
        self._trunk: int | None = None
        """Rows of the context of the last proposal; None before the first one."""
        self._parents: list[int] = []
        self._row_of = {-1: -1}
        self._window = ContextWindow()

    @property
    def vocabulary(self) -> int:
        """Number of ids that rows of logits have."""
        return self.model.spec.vocab_size

    @property
    def room(self) -> int:
        """Rows that are free."""
        return self.model.capacity - self.model.length

    def begin(self, context: Sequence[int], vocabulary: int) -> Floats | None:
        """Logits [V] after ``context``, of a long one after its end; None if that has a token from ``vocabulary`` on."""
        seen, moved = self._window.see(context, self.model.capacity - min(NODES, self.model.capacity // 2))
        if moved:
            self._trunk = None
        self._follow(seen)
        new = list(seen[self.model.length :])
        if max(new) >= vocabulary:
            self._trunk = None
            return None
        for start in range(0, len(new), self.model.chunk):
            chunk = new[start : start + self.model.chunk]
            logits = self.model.run(chunk, [len(chunk) - 1])
        self._trunk, self._parents, self._row_of = len(seen), [], {-1: -1}
        row: Floats = logits[0]
        return row

    def score(self, growth: Growth, nodes: Sequence[int]) -> Floats:
        """Logits [n, V] after these nodes, whose parents have been scored before; a view that the next pass overwrites."""
        for node in nodes:
            self._row_of[node] = len(self._parents)
            self._parents.append(self._row_of[growth.parents[node]])
        return self.model.run([growth.tokens[node] for node in nodes], range(len(nodes)), self._parents, trunk=self._trunk)

    def _follow(self, context: Sequence[int]) -> None:
        """Keep the rows that agree with the context. One of its tokens at least is left to run, for its logits."""
        model, trunk = self.model, self._trunk
        if trunk is None or trunk >= len(context):
            model.keep_common(context)  # The rows may be those of another generation: compare from the start.
            return
        path: list[int] = []
        for token in context[trunk:-1]:
            parent = path[-1] if path else -1
            row = next((row for row, of in enumerate(self._parents) if of == parent and model.tokens[trunk + row] == token), None)
            if row is None:
                break
            path.append(row)
        model.keep_path(trunk, path)
