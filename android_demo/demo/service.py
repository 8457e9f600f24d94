"""The engine behind the page. Commands are handled on whatever thread brings them; what takes time runs on one worker."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from edgespec import __version__
from edgespec.demo.importing import Cancelled, Open, import_bundle
from edgespec.demo.protocol import Event, Settings, parse_command, text_of
from edgespec.demo.storage import Storage
from edgespec.errors import BundleError, EdgespecError, UsageError
from edgespec.manifest import MANIFEST_NAME
from edgespec.runtime.memory.measure import usage
from edgespec.runtime.memory.size import parse_size

if TYPE_CHECKING:
    from edgespec.runtime import Chat, Engine, Stats, Stream

log = logging.getLogger(__name__)
FIGURES_S = 0.25  # between two events of figures
BUSY = "An answer is still being written. Stop it first."
NO_BUNDLE = "There is no model yet. Import a bundle first."
BUG = "Something unexpected happened; the log has the details."
Emit = Callable[[Event], None]


class Service:
    """Holds one engine and one conversation. ``emit`` is called with every event, from the thread where it happens. ``load_options``
    are those of :func:`edgespec.load` that the page does not change."""

    def __init__(
        self,
        state: Path,
        bundles: Path,
        emit: Emit,
        *,
        abilities: tuple[str, ...] = (),
        settings: Settings | None = None,
        load_options: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._storage = Storage(state)
        self._bundles = bundles
        self._emit = emit
        self._abilities = abilities
        self._settings = settings or self._stored_settings()
        self._load_options = load_options
        self._engine: Engine | None = None
        self._chat: Chat | None = None
        self._name = ""
        self._shown: list[dict[str, Any]] = []
        """The conversation as the page shows it: role, and parts of text with whether they were drafted."""
        self._stream: Stream | None = None
        self._stopped = threading.Event()
        self._busy = ""
        """What the worker does, in one word; empty when it waits."""
        self._lock = threading.Lock()
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._worker = threading.Thread(target=self._work, name="edgespec demo", daemon=True)
        self._worker.start()

    # Commands

    def receive(self, text: str | bytes) -> None:
        """Handle a command in JSON. Whatever is wrong with it becomes an event."""
        with self._reporting():
            self.handle(parse_command(text))

    def handle(self, command: Mapping[str, Any]) -> None:
        """Handle a command.

        Raises:
            UsageError: it is unknown, or not possible now.
        """
        kind = command["type"]
        if kind == "hello":
            self._emit(self.state())
        elif kind == "stop":
            self.stop()
        elif kind == "send":
            text = text_of(command)
            self._start("answering", lambda: self._answer(text))
        elif kind == "compare":
            text = text_of(command)
            self._start("comparing", lambda: self._compare(text))
        elif kind == "clear":
            self._start("clearing", self._clear)
        elif kind == "settings":
            settings = self._settings.changed(command.get("values"))
            self._start("loading", lambda: self._change(settings))
        elif kind == "open":
            path = self._bundle_path(command.get("name"))
            self._start("loading", lambda: self._open(path))
        else:
            raise UsageError(f"unknown command {kind!r}")

    def open(self, path: Path) -> None:
        """Load the bundle at ``path``, which may be anywhere."""
        self._start("loading", lambda: self._open(path))

    def open_last(self) -> None:
        """Load the bundle of the last time, or the only one that there is."""
        last, names = self._storage.read("last"), self.bundle_names()
        name = last if last in names else names[0] if names else None
        if name is not None:
            self.handle({"type": "open", "name": name})

    def import_from(self, sources: Mapping[str, Open], name: str) -> None:
        """Copy a bundle from a picker and load it."""
        self._start("importing", lambda: self._import(sources, name))

    def stop(self) -> None:
        """End the answer, comparison or import that is running."""
        self._stopped.set()
        stream = self._stream
        if stream is not None:
            stream.stop()

    def trim(self) -> None:
        """The system is short of memory: give back what can be had again."""
        engine = self._engine
        if engine is not None:
            engine.trim()
            self._emit({"type": "notice", "text": "The device is short of memory. What could be spared was given back."})
            self._emit(self._memory())

    def save(self) -> None:
        """Write the conversation, also in the middle of an answer."""
        with self._lock:
            self._storage.write("conversation", {"bundle": self._name, "messages": self._shown})

    def wait(self, timeout: float | None = None) -> bool:
        """Whether everything that was started has ended within ``timeout`` seconds."""
        done = threading.Event()
        self._jobs.put(done.set)
        return done.wait(timeout)

    def close(self) -> None:
        """Stop, save, and free the model."""
        self.stop()
        self._jobs.put(None)
        self._worker.join(timeout=30)
        if self._engine is not None:
            self._engine.close()

    # What there is to show

    def state(self) -> Event:
        """The event that says everything."""
        with self._lock:
            messages = [{**message, "parts": list(message["parts"])} for message in self._shown]
        settings = dataclasses.asdict(self._settings)
        return {
            "type": "state",
            "version": __version__,
            "abilities": list(self._abilities),
            "bundles": self.bundle_names(),
            "bundle": self._described(),
            "messages": messages,
            "settings": settings,
            "busy": self._busy,
            "memory": self._memory(),
        }

    def bundle_names(self) -> list[str]:
        """Bundles in the folder of bundles."""
        try:
            return sorted(path.parent.name for path in self._bundles.glob(f"*/{MANIFEST_NAME}") if not path.parent.name.startswith("."))
        except OSError:
            return []

    def _described(self) -> Event | None:
        engine = self._engine
        if engine is None:
            return None
        target = engine.manifest.target
        return {
            "name": self._name,
            "model": target.source.checkpoint,
            "licence": target.source.licence,
            "context": engine.capacity,
            "drafters": [*engine.drafters],
            "exactness": engine.exactness.grade,
            "given_up": list(engine.plan.steps),
        }

    def _memory(self) -> Event:
        now, budget = usage(), self._settings.budget
        return {"type": "memory", "used": now.resident, "peak": now.peak, "budget": parse_size(budget) if budget else None}

    # The worker

    def _start(self, busy: str, job: Callable[[], None]) -> None:
        with self._lock:
            if self._busy:
                raise UsageError(BUSY if self._busy in ("answering", "comparing") else "One moment, something else is being done.")
            self._busy = busy
            self._stopped.clear()
        self._jobs.put(job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            with self._reporting():
                job()
            if self._busy:
                self._busy = ""
                self._emit(self.state())

    @contextlib.contextmanager
    def _reporting(self) -> Any:
        """Turn errors into events: one sentence for the page, the rest for the log."""
        try:
            yield
        except Cancelled:
            self._emit({"type": "notice", "text": "The import was stopped; nothing was kept."})
        except EdgespecError as error:
            log.info("%s", error, exc_info=True)
            self._emit({"type": "error", "text": in_plain_words(error, self._bundles)})
        except MemoryError:
            log.exception("out of memory")
            self._emit({"type": "error", "text": "There is not enough memory. Set a smaller memory budget, or choose no drafter."})
        except OSError as error:
            log.exception("system error")
            self._emit({"type": "error", "text": f"The device refused: {error.strerror or error}."})
        except Exception:
            log.exception("unexpected")
            self._emit({"type": "error", "text": BUG})

    def _open(self, path: Path) -> None:
        from edgespec.runtime import load

        self._emit({"type": "loading", "text": f"Loading {path.name}…"})
        if self._engine is not None:
            self._engine.close()
            self._engine = self._chat = None
        engine = load(path, memory_budget=self._settings.budget, threads=self._settings.threads or None, **self._load_options)
        try:
            if engine.chat_template is None:
                raise BundleError(f"{path.name}: has no chat template, so it cannot chat")
            self._emit({"type": "loading", "text": "Measuring this device, once…"})
            _ = engine.exactness, engine.cost_curve
        except BaseException:
            engine.close()
            raise
        self._engine, self._name = engine, path.name
        self._restore()
        self._storage.write("last", path.name)

    def _restore(self) -> None:
        """Go on with the stored conversation, if it was had with this bundle."""
        assert self._engine is not None
        stored = self._storage.read("conversation")
        shown = checked_messages(stored.get("messages")) if isinstance(stored, dict) and stored.get("bundle") == self._name else []
        with self._lock:
            self._shown = shown
        self._new_chat()

    def _new_chat(self) -> None:
        assert self._engine is not None
        texts = [{"role": item["role"], "content": "".join(text for text, _ in item["parts"])} for item in self._shown]
        self._chat = self._engine.chat(messages=texts)

    def _import(self, sources: Mapping[str, Open], name: str) -> None:
        def progress(file: str, done: int, total: int) -> None:
            self._emit({"type": "progress", "file": file, "done": done, "total": total})

        path = import_bundle(sources, self._bundles, name, progress=progress, stopped=self._stopped.is_set)
        self._open(path)

    def _change(self, settings: Settings) -> None:
        reload, engine = self._settings.reloads(settings), self._engine
        if engine is not None:
            engine.check_drafter(settings.drafter)
        before, self._settings = self._settings, settings
        if reload and engine is not None:
            path = engine.path
            try:
                self._open(path)
            except EdgespecError:
                self._settings = before
                self._open(path)
                raise
        self._storage.write("settings", dataclasses.asdict(settings))

    def _clear(self) -> None:
        with self._lock:
            self._shown = []
        if self._engine is not None:
            self._new_chat()
        self.save()

    def _answer(self, text: str) -> None:
        if self._chat is None:
            raise UsageError(NO_BUNDLE)
        stream = self._chat.send(text, **self._settings.generation())
        answer: dict[str, Any] = {"role": "assistant", "parts": []}
        with self._lock:
            self._shown = [*self._shown, {"role": "user", "parts": [[text, False]]}, answer]
        self.save()
        try:
            answer["figures"] = self._run(stream, "chat", answer["parts"])
        finally:
            with self._lock:  # what the conversation itself kept, which is nothing where no text came
                self._shown = self._shown[: len(self._chat.messages)] if self._chat is not None else []
            self.save()

    def _compare(self, text: str) -> None:
        """The same prompt plain and with speculation, in conversations of their own. The first run warms up and is not shown."""
        if self._engine is None:
            raise UsageError(NO_BUNDLE)
        options = {**self._settings.generation(), "do_sample": False}
        options.pop("temperature", None)
        drafter = options["drafter"] if options["drafter"] != "none" else "auto"
        for _ in self._engine.chat().send(text, **{**options, "drafter": "none", "max_new_tokens": 4}):
            pass
        texts, figures = {}, {}
        for arm, name in (("plain", "none"), ("speculative", drafter)):
            if self._stopped.is_set():
                return
            parts: list[list[Any]] = []
            figures[arm] = self._run(self._engine.chat().send(text, **{**options, "drafter": name}), arm, parts)
            texts[arm] = "".join(part for part, _ in parts)
        if not self._stopped.is_set():
            self._emit({"type": "compared", "equal": texts["plain"] == texts["speculative"], **figures})

    def _run(self, stream: Stream, arm: str, parts: list[list[Any]]) -> Event:
        """Emit the pieces of ``stream`` and collect them; its figures in the end."""
        self._stream = stream
        self._emit({"type": "started", "arm": arm})
        told, reason = time.monotonic(), "stopped"
        try:
            if self._stopped.is_set():
                stream.stop()
            for piece in stream:
                accepted = bool(piece.drafted) and all(piece.drafted)
                if piece.text:
                    with self._lock:
                        _append(parts, piece.text, accepted)
                    self._emit({"type": "piece", "arm": arm, "text": piece.text, "accepted": accepted})
                reason = piece.finish_reason or reason
                if time.monotonic() - told > FIGURES_S:
                    told = time.monotonic()
                    self._emit({"type": "figures", "arm": arm, **figures_of(stream.stats)})
                    self._emit(self._memory())
        finally:
            self._stream = None
            stream.close()
            figures = {"reason": reason, **figures_of(stream.stats)}
            self._emit({"type": "finished", "arm": arm, **figures})
            self._emit(self._memory())
        return figures

    def _bundle_path(self, name: object) -> Path:
        if not isinstance(name, str) or name not in self.bundle_names():
            raise UsageError("There is no such bundle.")
        return self._bundles / name

    def _stored_settings(self) -> Settings:
        try:
            return Settings().changed(self._storage.read("settings") or {})
        except (UsageError, TypeError):
            return Settings()


def figures_of(stats: Stats) -> Event:
    """The figures that the page shows of an answer. Times in seconds; rates are null before there is one."""
    return {
        "new_tokens": stats.new_tokens,
        "accepted": stats.accepted,
        "tokens_per_pass": stats.tokens_per_pass,
        "acceptance": stats.acceptance_rate,
        "tokens_per_s": stats.decode_tokens_per_s or None,
        "first_token_s": stats.time_to_first_token_s,
        "exactness": stats.exactness,
        "speculation_off": stats.speculation_off,
    }


def checked_messages(stored: object) -> list[dict[str, Any]]:
    """A stored conversation, as far as it is one."""
    found: list[dict[str, Any]] = []
    for item in stored if isinstance(stored, list) else ():
        try:
            role, parts = item["role"], [[str(text), bool(accepted)] for text, accepted in item["parts"]]
        except (KeyError, TypeError, ValueError):
            break
        if role != ("user", "assistant")[len(found) % 2] or (role == "user" and not parts):
            break
        found.append({"role": role, "parts": parts, **({"figures": item["figures"]} if "figures" in item else {})})
    return found[: len(found) // 2 * 2]


def in_plain_words(error: EdgespecError, folder: Path) -> str:
    """An error as one sentence, without the place of the app's own folder."""
    text = " ".join(str(error).replace(f"{folder}/", "").split())
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else text + "."


def _append(parts: list[list[Any]], text: str, accepted: bool) -> None:
    """Add text, to the last part if it is of the same kind."""
    if parts and parts[-1][1] == accepted:
        parts[-1][0] += text
    else:
        parts.append([text, accepted])
