"""The exported target, opened to write texts: how turns become tokens, and how texts become rows."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edgespec.bundle import open_bundle
from edgespec.errors import CapacityError
from edgespec.export.distill.batch_graph import write_batch_graph
from edgespec.export.distill.batch_model import BatchModel
from edgespec.export.distill.continuous_batching import ContinuousBatching, Request, Text
from edgespec.export.distill.questions import Turns
from edgespec.export.distill.shards import Shard
from edgespec.runtime.models.model import Model
from edgespec.runtime.models.rows import cache_bytes
from edgespec.runtime.providers.session import DEFAULT_PROVIDERS
from edgespec.runtime.text.chat_template import ChatTemplate
from edgespec.runtime.text.tokenizer import Tokenizer

MARK = "\N{BLACK QUESTION MARK ORNAMENT}mark"
ROWS = 4096  # of the cache: no text is longer
BATCH_GRAPH = "target.batch.onnx"
BATCH_BYTES = 3 * 2**30  # of the caches of all texts together,
USUAL_ROWS = 1024  # if the longest has as many


class Target:
    """A bundle whose graph gives the hidden states that the draft reads.

    Args:
        bundle: its folder.
        slots: texts that are written side by side, fewer where their caches would be too large.
        threads: of a pass.
    """

    def __init__(self, bundle: Path, slots: int, threads: int) -> None:
        self.manifest = open_bundle(bundle)
        spec = self.spec = self.manifest.target
        self.tokenizer = Tokenizer(bundle, self.manifest.tokenizer, spec.vocab_size)
        self.template = ChatTemplate(bundle, self.manifest.tokenizer) if self.manifest.tokenizer.chat_template else None
        capacity = min(spec.capacity, ROWS)
        self.model = Model(bundle / spec.graph, spec, capacity=capacity, threads=threads, providers=DEFAULT_PROVIDERS, alone=False)
        self._bundle, self._threads = bundle, threads
        self._slots = max(1, min(slots, BATCH_BYTES // cache_bytes(spec, USUAL_ROWS)))
        self.ends = frozenset(self.manifest.tokenizer.eos_ids)
        self._question = self._question_frame()

    @property
    def asks(self) -> bool:
        """Whether it can be made to ask questions itself."""
        return self._question is not None

    def encode(self, turns: Turns) -> list[int]:
        """The tokens up to where its answer begins."""
        if self.template is None:
            return self.tokenizer.encode(turns[-1], prefix=True)
        messages = [{"role": "assistant" if index % 2 else "user", "content": turn} for index, turn in enumerate(turns)]
        return self.tokenizer.encode(self.template.render(messages), prefix=False)

    def question(self, opener: str) -> list[int]:
        """The tokens of a conversation in which the user has begun to speak."""
        assert self._question is not None
        return self.tokenizer.encode(self._question[0] + opener, prefix=False)

    @functools.cached_property
    def _batch(self) -> BatchModel:
        graph = self._bundle / BATCH_GRAPH
        if not graph.exists():
            write_batch_graph(self._bundle / self.spec.graph, graph)
        return BatchModel(graph, self.spec, texts=self._slots, threads=self._threads)

    def write(self, requests: Sequence[Request], *, questions: bool = False) -> list[Text]:
        """The texts, in the order of ``requests``; ``questions`` are those of users, which end where the user's turn ends."""
        ends = self.ends | {self._question[1]} if questions and self._question is not None else self.ends
        batch = self._batch if any(request.most for request in requests) else None
        written = dict(ContinuousBatching(self.model, batch, self.tokenizer.size, ends).write(requests))
        return [written[index] for index in range(len(requests))]

    def rows(self, shard: Shard) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What :meth:`Shard.rows` gives, computed again."""
        bounds = shard.bounds
        texts = [shard.tokens[bounds[index] : bounds[index + 1]].tolist() for index in range(len(shard))]
        written = self.write([Request(tokens, int(start)) for tokens, start in zip(texts, shard.starts, strict=True)])
        return (
            np.concatenate([text.features for text in written]),
            np.concatenate([text.likely for text in written]),
            np.concatenate([text.log_p for text in written]),
        )

    def _question_frame(self) -> tuple[str, int] | None:
        """What stands before a user's turn, and the first token behind it."""
        if self.template is None:
            return None
        parts = self.template.render([{"role": "user", "content": MARK}]).split(MARK)
        behind = self.tokenizer.encode(parts[1], prefix=False) if len(parts) == 2 else []
        return (parts[0], behind[0]) if behind else None

    def check_room(self, tokens: int) -> None:
        """Refuse a target whose context cannot hold a prompt and ``tokens`` of an answer.

        Raises:
            CapacityError: it is too short.
        """
        if self.model.capacity < 2 * tokens:
            raise CapacityError(
                f"the target's context of {self.model.capacity} tokens is too short for answers of {tokens}; give --answer-tokens"
            )
