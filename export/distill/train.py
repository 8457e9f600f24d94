"""Training a draft: AdamW on the target's own words, judged by tokens per pass on held-out answers, with the best state kept.

A training that stopped goes on from its newest checkpoint, and where the budget is a number of tokens it ends with the very weights
that it would have had without the stop. With several processes each takes every n-th batch, and gradients are averaged.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast

from edgespec.errors import CapacityError, UsageError
from edgespec.export.distill.batches import Batch, Batches, Window
from edgespec.export.distill.config import DistillConfig
from edgespec.export.distill.judge import Verdict, judge
from edgespec.export.distill.precision import autocast
from edgespec.export.distill.students import Student
from edgespec.files import whole

LOOKS = 20  # evaluations of a training
LOOK_SHARE = 0.1  # most of its time that they may take
PATIENCE = 6  # of them without a gain end it
LEAST_GAIN = 1e-3  # tokens per pass
WARM_UP = 0.03  # share of the training in which the learning rate rises
FLOOR = 0.02  # share of the learning rate that is left at the end
CLIP = 1.0  # largest norm of the gradients
BETAS = (0.9, 0.95)
CHECKPOINT_SECONDS = 60.0


@dataclasses.dataclass
class State:
    """Where a training is, besides weights and optimiser."""

    step: int = 0
    seconds: float = 0.0
    loss: float = 0.0
    stale: int = 0
    best: float = 0.0
    best_step: int = 0
    looks: list[list[float]] = dataclasses.field(default_factory=list)
    """Step, seconds, loss and tokens per pass of each evaluation."""


@dataclasses.dataclass(frozen=True)
class Budget:
    """When a training ends: after so many steps, or seconds of its own."""

    steps: int | None = None
    seconds: float | None = None

    def progress(self, state: State) -> float:
        """Share of it that is used up."""
        if self.steps is not None:
            return state.step / self.steps
        assert self.seconds is not None
        return state.seconds / self.seconds


class Trainer:
    """Trains ``student`` on ``batches``.

    Args:
        student: the draft; on leaving :meth:`train` it has its best weights.
        batches, held: the corpus, and what the draft is judged on.
        budget: when to end.
        config: of the distillation.
        accelerator: the processes and devices.
        path: of the checkpoint.
        on_look: is told the state and the verdict after each evaluation.
    """

    def __init__(
        self,
        student: Student,
        batches: Batches,
        held: Batches,
        budget: Budget,
        config: DistillConfig,
        accelerator: Accelerator,
        path: Path,
        on_look: Callable[[State, Verdict], None] = lambda *_: None,
    ) -> None:
        self._batches = batches
        self._held = held
        self._budget = budget
        self._config = config
        self._accelerator = accelerator
        self._path = path
        self._on_look = on_look
        self.student = student.to(accelerator.device)
        decayed = [parameter for parameter in student.trained().values() if parameter.dim() > 1]
        others = [parameter for parameter in student.trained().values() if parameter.dim() <= 1]
        groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
        self._optimiser = torch.optim.AdamW(groups, lr=config.learning_rate, betas=BETAS)
        self._wrapped = accelerator.prepare_model(student)
        self._best: dict[str, torch.Tensor] = {}
        self._verdict: Verdict | None = None
        """On the best state; None if an earlier run had it."""
        self._parts = 1
        self._look_seconds = 0.0
        self._autocast = autocast(config.precision, accelerator.device)
        self.state = State()

    def train(self) -> Verdict:
        """Train until the budget is used up or held-out tokens per pass stop rising; returns the verdict on the best state.

        Raises:
            UsageError: the checkpoint is damaged or another training's.
            CapacityError: not even one text fits into the memory of the device.
        """
        self._restore()
        saved = started = time.monotonic()
        before = self.state.seconds
        if not self.state.looks:
            self._look()
        next_look = self._next_look()
        for windows in self._stream():
            progress = self._agreed(self._budget.progress(self.state))
            if progress >= 1 or self.state.stale >= PATIENCE:
                break
            self._step(self._batches.load(windows), progress)
            self.state.step += 1
            self.state.seconds = before + time.monotonic() - started
            looks = self._agreed(self._budget.progress(self.state)) >= next_look
            if looks:
                self._look()
                next_look = self._next_look()
            if looks or time.monotonic() - saved > CHECKPOINT_SECONDS:
                self._save()
                saved = time.monotonic()
        if self.state.looks[-1][0] != self.state.step:
            self._look()
        self._save()
        self.student.load_trained(self._best)
        return self._verdict or self._judge()

    def _stream(self) -> Iterator[list[Window]]:
        """This process's batches from where the training is, epoch after epoch."""
        count, rank = self._accelerator.num_processes, self._accelerator.process_index
        done, epoch = 0, 0
        while True:
            plan = self._batches.plan(epoch)
            if len(plan) < count:
                raise UsageError(f"the corpus has {len(plan)} batches, too few for {count} processes; start fewer")
            steps = len(plan) // count
            for step in range(max(self.state.step - done, 0), steps):
                yield plan[step * count + rank]
            done += steps
            epoch += 1

    def _step(self, batch: Batch, progress: float) -> None:
        for group in self._optimiser.param_groups:
            group["lr"] = self._config.learning_rate * schedule(progress)
        batch = batch.to(self._accelerator.device)
        while True:
            try:
                self.state.loss = self._backward(batch)
                break
            except torch.OutOfMemoryError as error:
                # The same step in smaller pieces: only memory changes.
                self._optimiser.zero_grad()
                if self._parts >= len(batch):
                    raise CapacityError("not even one text fits into the memory of the device; give a smaller --window") from error
                self._parts = min(2 * self._parts, len(batch))
                if self._accelerator.device.type == "cuda":
                    torch.cuda.empty_cache()
        self._accelerator.clip_grad_norm_(list(self.student.trained().values()), CLIP)
        self._optimiser.step()
        self._optimiser.zero_grad()

    def _backward(self, batch: Batch) -> float:
        counts = self.student.counts(batch)
        parts = batch.parts(min(self._parts, len(batch)))
        total = 0.0
        for part in parts[:-1]:
            with self._accelerator.no_sync(self._wrapped):
                total += self._backward_part(part, counts)
        return total + self._backward_part(parts[-1], counts)

    def _backward_part(self, part: Batch, counts: torch.Tensor) -> float:
        with self._autocast:
            loss = self._wrapped(part, counts)
        self._accelerator.backward(loss)
        return float(loss.detach())

    def _judge(self) -> Verdict:
        with self._autocast:
            return judge(self.student, self._held)

    def _look(self) -> None:
        """Judge the draft as it is, and keep it if it is the best so far."""
        started = time.monotonic()
        verdict = self._judge()
        self._look_seconds = time.monotonic() - started
        state, found = self.state, verdict.all.tokens_per_pass
        state.looks.append([float(state.step), round(state.seconds, 1), round(state.loss, 4), round(found, 4)])
        if not self._best or found > state.best + LEAST_GAIN:
            state.best, state.best_step, state.stale = found, state.step, 0
            self._verdict = verdict
            self._best = {name: tensor.detach().clone() for name, tensor in self.student.trained().items()}
        else:
            state.stale += 1
        self._on_look(state, verdict)

    def _next_look(self) -> float:
        """Share of the budget at which the draft is judged again; the same for all processes."""
        planned = len(self.state.looks) / LOOKS
        if self._budget.seconds is None:
            return planned
        earliest = self._budget.progress(self.state) + self._look_seconds / LOOK_SHARE / self._budget.seconds
        return self._agreed(max(planned, earliest))

    def _agreed(self, progress: float) -> float:
        """The first process's, so that all end at the same step; clocks differ."""
        if self._accelerator.num_processes == 1 or self._budget.steps is not None:
            return progress
        return float(broadcast(torch.tensor(progress, device=self._accelerator.device)))

    def _save(self) -> None:
        if not self._accelerator.is_main_process:
            return
        held = {
            "processes": self._accelerator.num_processes,
            "state": dataclasses.asdict(self.state),
            "student": {name: tensor.detach() for name, tensor in self.student.trained().items()},
            "optimiser": self._optimiser.state_dict(),
            "best": self._best,
        }
        with whole(self._path, synced=True) as file:
            torch.save(held, file)

    def _restore(self) -> None:
        if not self._path.is_file():
            return
        try:
            held: dict[str, Any] = torch.load(self._path, map_location=self._accelerator.device, weights_only=True)
            processes = held["processes"]
            self.student.load_trained(held["student"])
            self._optimiser.load_state_dict(held["optimiser"])
            self.state = State(**held["state"])
            self._best = held["best"]
        except Exception as error:  # torch raises many kinds for a damaged file
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            raise UsageError(f"{self._path}: cannot be gone on from ({reason}); delete it to train anew") from error
        if processes != self._accelerator.num_processes:
            raise UsageError(f"--resume: the training was begun with {processes} processes; start as many, or delete {self._path}")


def schedule(progress: float) -> float:
    """Share of the learning rate: up in a line, then down as a cosine."""
    if progress < WARM_UP:
        return (progress + WARM_UP / 10) / (1.1 * WARM_UP)
    along = min((progress - WARM_UP) / (1 - WARM_UP), 1.0)
    return FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * along))


def steps_of(batches: Batches, epochs: int, processes: int) -> int:
    """Steps of so many passes over the corpus."""
    return sum(len(batches.plan(epoch)) // processes for epoch in range(epochs))
