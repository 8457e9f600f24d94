"""From blocks of tokens to pieces of text, and the iterator over them that a caller holds."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from types import TracebackType

from edgespec.runtime.loop import Block, FinishReason
from edgespec.runtime.stats import Stats
from edgespec.runtime.text.detokenizer import Detokenizer
from edgespec.runtime.text.stop import StopTexts
from edgespec.runtime.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Piece:
    """Text as it comes: complete characters, the tokens behind them, and whether each of these was drafted.

    The pieces' tokens together are the generation's tokens, an end-of-text token included, whose text is empty. Only
    around a stop text, of which nothing is shown, can a piece's text be that of neighbouring tokens.
    """

    text: str
    token_ids: tuple[int, ...]
    drafted: tuple[bool, ...]
    finish_reason: FinishReason | None = None
    """On the last piece."""


@dataclasses.dataclass(frozen=True)
class GenerationResult:
    """A whole generation. ``finish_reason`` is "eos", "stop" (a stop text), "length" (max_new_tokens), "capacity" (the
    KV cache is full) or "stopped" (by ``Stream.stop`` or ``Engine.stop``)."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: Stats


class Stream(Iterator[Piece], AsyncIterator[Piece]):
    """The pieces of one generation, for ``for`` and for ``async for``, which runs each pass in a thread.

    ``stop`` and ``close`` may be called from any thread. A generation that was closed, or whose stream was dropped, leaves
    the engine free for the next one. As a context manager a stream is closed at the end.
    """

    def __init__(self, pieces: Generator[Piece], stopped: threading.Event, stats: Stats) -> None:
        self.stats = stats
        """Counters of this generation, kept up to date."""
        self._pieces = pieces
        self.stopped = stopped
        """Set by :meth:`stop`."""
        self._running = threading.RLock()

    def stop(self) -> None:
        """End the text after the pass that is being run. The last piece then says "stopped"."""
        self.stopped.set()

    def close(self) -> None:
        """Give up the rest. A pass that another thread is running is waited for; from within one, as a signal handler may be, it
        is only stopped."""
        self.stopped.set()
        with self._running, contextlib.suppress(ValueError):  # "generator already executing", in this thread
            self._pieces.close()

    def result(self) -> GenerationResult:
        """What is left of the generation, to its end."""
        text: list[str] = []
        tokens: list[int] = []
        reason: FinishReason | None = None
        for piece in self:
            text.append(piece.text)
            tokens.extend(piece.token_ids)
            reason = piece.finish_reason or reason
        assert reason is not None, "the last piece says why the text ends"
        return GenerationResult("".join(text), tuple(tokens), reason, self.stats)

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Piece:
        with self._running:
            return next(self._pieces)

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Piece:
        import asyncio  # a tenth of a second of importing, for those who use it only

        loop = asyncio.get_running_loop()
        step = loop.run_in_executor(None, next, self, None)
        try:
            piece = await asyncio.shield(step)
        except asyncio.CancelledError:
            self.stop()
            loop.run_in_executor(None, self.close)
            raise
        if piece is None:
            raise StopAsyncIteration
        return piece

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def pieces_of(blocks: Iterator[Block], tokenizer: Tokenizer, stop: Sequence[str], stats: Stats) -> Iterator[Piece]:
    """The text of ``blocks``, up to the first of the texts ``stop``; ``stats`` then no longer counts what came after it."""
    detokenizer, stopper = Detokenizer(tokenizer), StopTexts(stop)
    waiting: list[tuple[int, bool]] = []

    def piece(text: str, finish: FinishReason | None) -> Piece:
        tokens, drafted = tuple(token for token, _ in waiting), tuple(flag for _, flag in waiting)
        waiting.clear()
        return Piece(text, tokens, drafted, finish)

    def rest() -> tuple[str, bool]:
        """What was held back, at the end; it can complete a stop text."""
        text, stopped = stopper.push(detokenizer.flush())
        return (text, True) if stopped else (text + stopper.flush(), False)

    for block in blocks:
        last = len(block.tokens) - 1
        for index, token in enumerate(block.tokens):
            waiting.append((token, block.drafted[index]))
            text, stopped = stopper.push(detokenizer.push(token))
            finish = block.finish if index == last else None
            if finish and not stopped:
                more, stopped = rest()
                text += more
            if stopped:
                finish = "stop"
                dropped = block.drafted[index + 1 :]
                stats.new_tokens -= len(dropped)
                stats.accepted -= sum(dropped)
                stats.forced -= min(block.forced, len(dropped))
            if text or finish:
                yield piece(text, finish)
            if finish:
                return
        if block.finish:  # without a token: it was stopped
            text, stopped = rest()
            yield piece(text, "stop" if stopped else block.finish)
            return
