"""What a distillation was asked to do."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

from edgespec.errors import UsageError

KINDS = ("eagle", "medusa", "lm")
EXPORT_OPTIONS = {"eagle": "eagle", "medusa": "medusa", "lm": "draft"}
"""What a draft of a kind is to ``edgespec export``."""
HEADS = ("frozen", "trained", "borrowed")
PRECISIONS = AUTO, FLOAT32, BFLOAT16 = ("auto", "fp32", "bf16")
DEFAULT_MINUTES = 60.0
SPACE = 8 * 10**9
NOT_SETTINGS = ("output", "resume", "quiet", "evaluate")


@dataclasses.dataclass(frozen=True)
class DistillConfig:
    """One distillation.

    ``target`` is a Hub id, a checkpoint folder or a ``.gguf`` file, ``output`` the folder to make. The draft is trained on the
    target as it is exported with ``weights`` and ``block_size``; fp32 is the float one.
    Either ``minutes`` of time or ``tokens`` of answers say how much: half of the time goes into text and half into training, while a
    corpus of so many tokens is trained on ``epochs`` times. The latter gives the same draft again for the same ``seed``.
    ``prompts`` and ``texts`` are the user's files. ``steps`` is the number of tokens that the draft is trained to foretell in a
    row. ``vocabulary`` is the number of tokens that it scores, by default what covers nearly all of the corpus. ``head`` says what its
    last matrix is: the target's own rows ("frozen"), the same but left out of the file ("borrowed"), or trained from these on.
    ``taps`` are the layers in front of which an EAGLE head listens, the paper's three by default; ``intermediate`` is the width of its
    gated unit, by default the target's. ``layers`` is the depth of a standalone draft.
    ``slots`` texts of at most ``answer_tokens`` are written side by side, ``shard_texts`` in a shard; ``space`` is the number of bytes
    that stored hidden states may take: those of further text are computed again when needed.
    ``batch_rows`` are rows of a training batch and ``window`` those of a text in it. Matrix products of the training are in
    ``precision``: bf16, fp32, or by default what the machine has instructions for.
    """

    target: str
    output: Path
    kind: str = "eagle"
    minutes: float | None = None
    tokens: int | None = None
    epochs: int = 4
    prompts: Path | None = None
    texts: tuple[Path, ...] = ()
    seed: int = 0
    weights: str = "int8"
    block_size: int = 32
    context: int | None = None
    steps: int = 3
    vocabulary: int | None = None
    head: str = "frozen"
    taps: tuple[int, ...] | None = None
    intermediate: int | None = None
    layers: int = 2
    slots: int = 32
    answer_tokens: int = 192
    shard_texts: int = 256
    space: int = SPACE
    batch_rows: int = 2048
    window: int = 320
    learning_rate: float = 1e-3
    weight_decay: float = 0.05
    precision: str = AUTO
    revision: str | None = None
    trust_remote_code: bool = False
    resume: bool = False
    evaluate: bool = False
    quiet: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"--kind: {self.kind!r} is not one of {', '.join(KINDS)}")
        if self.head not in HEADS:
            raise UsageError(f"--head: {self.head!r} is not one of {', '.join(HEADS)}")
        if self.precision not in PRECISIONS:
            raise UsageError(f"--precision: {self.precision!r} is not one of {', '.join(PRECISIONS)}")
        if (self.head == "borrowed" and self.kind != "eagle") or (self.head == "trained" and self.kind == "lm"):
            raise UsageError(f"--head {self.head}: a draft of kind {self.kind} has no place for it; choose frozen")
        if self.vocabulary is not None and self.kind != "eagle":
            raise UsageError(f"--vocabulary: a draft of kind {self.kind} scores all tokens of the target")
        for name, kind in (("taps", "eagle"), ("intermediate", "eagle"), ("layers", "lm")):
            if self.kind != kind and getattr(self, name) != getattr(DistillConfig, name):
                raise UsageError(f"--{name}: is for drafts of kind {kind}; a draft of kind {self.kind} has none")
        if self.tokens is None and self.epochs != DistillConfig.epochs:
            raise UsageError("--epochs: goes with --tokens; with --minutes the training takes the time that there is")
        if self.minutes is not None and self.tokens is not None:
            raise UsageError("--minutes and --tokens exclude each other")
        if self.taps is not None and (not self.taps or min(self.taps) < 1):
            raise UsageError("--taps: give layers from 1 on, as 2,15,27")
        least = {
            "minutes": 0.01,
            "tokens": 1,
            "epochs": 1,
            "steps": 1,
            "vocabulary": 16,
            "intermediate": 8,
            "slots": 1,
            "layers": 1,
            "answer_tokens": 16,
        }
        least |= {"shard_texts": 4, "space": 0, "batch_rows": 8, "window": 8}
        least |= {"seed": 0, "weight_decay": 0, "learning_rate": 1e-9}
        for name, lowest in least.items():
            value = getattr(self, name)
            if value is not None and not value >= lowest:
                raise UsageError(f"--{name.replace('_', '-')}: {value} is less than {lowest}")

    @property
    def total_minutes(self) -> float | None:
        """The budget of time, None if tokens are the budget."""
        return None if self.tokens is not None else self.minutes or DEFAULT_MINUTES

    def settings(self) -> dict[str, Any]:
        """All that the result depends on, as plain JSON; the user's files by their content.

        Raises:
            UsageError: a file cannot be read.
        """
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name not in NOT_SETTINGS}
        plain["prompts"] = None if self.prompts is None else _digest("--prompts", self.prompts)
        plain["texts"] = [_digest("--text", path) for path in self.texts]
        plain["taps"] = None if self.taps is None else list(self.taps)
        return plain


def _digest(option: str, path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UsageError(f"{option} {path}: cannot be read: {error.strerror}") from error
