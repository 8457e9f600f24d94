"""The folder beside the draft that holds what took time: the exported target, the corpus, and the state of the training.

DRAFT.work/
  settings.json     what was asked for; another request is refused
  target/           the bundle with the hidden states that the draft reads
  corpus/00000.safetensors ...
  corpus/closed.json    how many shards the training has, once it has begun
  training.pt       the newest checkpoint
  clock.json        seconds spent before the training
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgespec.errors import ExportError, UsageError
from edgespec.export.distill.shards import Entry, Shard, read_shard, write_shard
from edgespec.files import whole

RESERVE = 64 * 2**20  # bytes that stay free
FREE = {"minutes", "space"}  # settings that may be others when it goes on
OF_THE_TRAINING = {"window", "batch_rows", "precision", "learning_rate", "weight_decay"}  # and these until that has begun


class Workplace:
    """The folder, and what is in it."""

    def __init__(self, output: Path) -> None:
        self.folder = output.with_name(f"{output.name}.work")
        self.target = self.folder / "target"
        self.training = self.folder / "training.pt"
        self._settings = self.folder / "settings.json"
        self._corpus = self.folder / "corpus"
        self._closed = self._corpus / "closed.json"
        self._tokens: dict[int, int] = {}

    @property
    def is_begun(self) -> bool:
        return self._settings.is_file()

    def check(self, settings: Mapping[str, Any], *, resume: bool) -> None:
        """Refuse a folder that another distillation has begun. More or less time or space than was asked for at first is the same one.

        Raises:
            UsageError: ``resume`` is not set, or it was begun with other settings.
        """
        if not self.is_begun:
            return
        if not resume:
            raise UsageError(f"{self.folder}: an earlier distillation stopped there; go on with --resume, or remove the folder")
        try:
            before = json.loads(self._settings.read_text(encoding="utf-8"))
            free = FREE if self.training.exists() else FREE | OF_THE_TRAINING
            others = sorted(name for name in {*before, *settings} - free if before.get(name) != settings.get(name))
        except (ValueError, AttributeError) as error:
            raise UsageError(f"{self._settings}: damaged; remove the folder {self.folder}") from error
        if others:
            found = ", ".join(f"{name} {before.get(name)!r} and not {settings.get(name)!r}" for name in others[:3])
            raise UsageError(f"--resume: {self.folder} was begun with {found}; give the same options, or remove the folder")

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Make the folder, if it is not there, and note what is asked for, which :meth:`check` has allowed."""
        self._corpus.mkdir(parents=True, exist_ok=True)
        _write(self._settings, dict(settings))

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def shards(self) -> list[int]:
        """Numbers of the shards that are there."""
        return sorted(int(path.stem) for path in self._corpus.glob("[0-9]*.safetensors") if path.stem.isdecimal())

    def read_shard(self, number: int) -> Shard:
        return read_shard(self._path(number))

    def write_shard(self, number: int, entries: Sequence[Entry], statistics: dict[str, Any], space: int) -> None:
        """Write a shard, without hidden states if the stored ones would then take more than ``space`` bytes.

        Raises:
            ExportError: there is no room on the disk.
        """
        size = sum(entry.text.features.nbytes + entry.text.likely.nbytes + entry.text.log_p.nbytes for entry in entries)
        used = sum(path.stat().st_size for path in self._corpus.glob("*.safetensors"))
        rows = used + size <= space
        free = shutil.disk_usage(self._corpus).free
        needed = RESERVE + (size if rows else 0)
        if free < needed:
            hint = "free some space or choose a smaller --space, then go on with --resume"
            raise ExportError(f"{self._corpus}: {free // 10**6} MB free, {needed // 10**6} MB needed; {hint}")
        write_shard(self._path(number), entries, statistics, rows=rows)

    def answer_tokens(self, number: int) -> int:
        """Labelled tokens of a shard."""
        if number not in self._tokens:
            self._tokens[number] = self.read_shard(number).answer_tokens
        return self._tokens[number]

    def corpus(self, tokens: int | None) -> list[int] | None:
        """The shards to train on: from 1 on without a gap, the fewest with ``tokens`` answer tokens or all if None. None if there
        are not enough."""
        known, total = set(self.shards()), 0
        found: list[int] = []
        while (number := len(found) + 1) in known and (tokens is None or total < tokens):
            found.append(number)
            total += self.answer_tokens(number)
        return found if tokens is None or total >= tokens else None

    def close_corpus(self, tokens: int | None) -> None:
        """From here on the corpus does not grow, so that a training that goes on sees the same."""
        if not self.is_closed:
            _write(self._closed, {"shards": self.corpus(tokens)})

    @property
    def is_closed(self) -> bool:
        return self._closed.is_file()

    def closed_corpus(self) -> list[Shard]:
        """The shards to train on."""
        try:
            numbers = json.loads(self._closed.read_text(encoding="utf-8"))["shards"]
            return [self.read_shard(int(number)) for number in numbers]
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{self._closed}: damaged; delete it and go on with --resume") from error

    @property
    def seconds(self) -> float:
        """Time spent before the training, by all runs together."""
        try:
            return float(json.loads((self.folder / "clock.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return 0.0

    def set_seconds(self, seconds: float) -> None:
        _write(self.folder / "clock.json", round(seconds, 1))

    def _path(self, number: int) -> Path:
        return self._corpus / f"{number:05d}.safetensors"


def _write(path: Path, data: object) -> None:
    with whole(path, synced=True) as file:
        file.write(json.dumps(data, indent=1).encode())
