"""A distillation from end to end: export the target, let it write, train, and only then put the draft in place."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from edgespec.bundle import open_bundle
from edgespec.errors import ExportError, UsageError
from edgespec.export.config import ExportConfig
from edgespec.export.distill.acceptance import expected_speedup
from edgespec.export.distill.batches import Batches
from edgespec.export.distill.card import write_card
from edgespec.export.distill.config import DistillConfig
from edgespec.export.distill.corpus import HELD, Own, Writer, grow_corpus
from edgespec.export.distill.judge import Verdict
from edgespec.export.distill.questions import read_text, read_user_prompts
from edgespec.export.distill.shards import Shard
from edgespec.export.distill.students import STUDENTS, Student
from edgespec.export.distill.target import Target
from edgespec.export.distill.train import Budget, State, Trainer, steps_of
from edgespec.export.distill.vocabulary import choose_tokens, count_tokens, coverage
from edgespec.export.distill.workplace import Workplace
from edgespec.export.heads.base import TargetShape
from edgespec.export.pipeline import export_bundle, open_shape
from edgespec.manifest import Manifest
from edgespec.runtime.cores import default_threads
from edgespec.staging import check_output, staged

WRITING = 0.5  # share of the time that goes into text
LEAST_TRAINING = 0.1  # share of the time that is left to training, however long the rest took


@dataclasses.dataclass(frozen=True)
class DistillReport:
    """What was made. ``verdict`` is on held-out answers; ``expected_speedup`` follows from it and this machine's cost curve with
    ``draft_length`` tokens drafted."""

    output: Path
    verdict: Verdict
    state: State
    answer_tokens: int
    vocabulary: int
    coverage: float
    expected_speedup: float
    draft_length: int


def distill(config: DistillConfig) -> DistillReport | None:
    """Make the draft ``config.output``; in a process that is not the first of several, help with it and return None.

    Raises:
        UsageError: options that contradict each other, or a work folder of another distillation.
        CheckpointError, UnsupportedModelError: the target cannot be exported.
        ExportError: the output exists, or the disk is full.
        CapacityError: the target's context is too short.
    """
    if config.output.exists():
        raise ExportError(f"{config.output}: exists already; choose another folder")
    check_output(config.output, force=False)
    settings = config.settings()
    check_files(config)
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    work = Workplace(config.output)
    if accelerator.is_main_process:
        work.check(settings, resume=config.resume)
    run = _Run(config, accelerator, work, time.monotonic())
    if accelerator.is_main_process:
        run.export(settings)
    accelerator.wait_for_everyone()
    run.write_corpus()
    return run.train()


def check_files(config: DistillConfig) -> None:
    """Refuse the user's files before any work.

    Raises:
        UsageError: one is malformed.
    """
    if config.prompts is not None:
        read_user_prompts(config.prompts)
    for path in config.texts:
        read_text("--text", path)


def export_config(config: DistillConfig, output: Path) -> ExportConfig:
    """The export of the target that the draft is for."""
    return ExportConfig(
        target=config.target,
        output=output,
        weights=config.weights,
        block_size=config.block_size,
        context=config.context,
        revision=config.revision,
        trust_remote_code=config.trust_remote_code,
        quiet=config.quiet,
    )


class _Run:
    """One process's part of a distillation."""

    def __init__(self, config: DistillConfig, accelerator: Accelerator, work: Workplace, started: float) -> None:
        self.config = config
        self.accelerator = accelerator
        self.work = work
        self.started = started
        self.shape: TargetShape = open_shape(export_config(config, work.target))
        self.student: type[Student] = STUDENTS[config.kind]
        self.taps = self.student.taps(self.shape, config)
        self._target: Target | None = None
        self._before = work.seconds
        self._last_shard = started

    @property
    def target(self) -> Target:
        """Opened when first needed: a training that goes on may never need it."""
        if self._target is None:
            local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            self._target = Target(self.work.target, self.config.slots, max(1, default_threads() // local))
        return self._target

    @functools.cached_property
    def manifest(self) -> Manifest:
        """Of the exported target."""
        return open_bundle(self.work.target)

    def export(self, settings: dict[str, Any]) -> None:
        """The target with the hidden states that the draft reads. A target that cannot be exported leaves nothing behind."""
        is_new = not self.work.folder.exists()
        self.work.begin(settings)
        if self.work.target.exists():
            return
        self.say("exporting the target")
        try:
            export_bundle(dataclasses.replace(export_config(self.config, self.work.target), taps=self.taps))
        except BaseException:
            if is_new:
                self.work.remove()
            raise

    def write_corpus(self) -> None:
        """The corpus, each process its shards; closed when all are done."""
        config, work, accelerator = self.config, self.work, self.accelerator
        if not work.is_closed:
            self.target.check_room(config.answer_tokens)
            own = Own.read(config, self.target)
            self._last_shard = time.monotonic()
            minutes = config.total_minutes
            deadline = None if minutes is None else self.started - self._before + 60 * WRITING * minutes
            grow_corpus(
                work,
                Writer(self.target, config, own),
                config,
                rank=accelerator.process_index,
                processes=accelerator.num_processes,
                deadline=deadline,
                on_shard=self._on_shard,
            )
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                work.close_corpus(config.tokens)
                work.set_seconds(self._before + time.monotonic() - self.started)
        accelerator.wait_for_everyone()

    def train(self) -> DistillReport | None:
        config, work, spec = self.config, self.work, self.manifest.target
        self._target = None  # its memory is the training's
        shards, held = work.closed_corpus(), work.read_shard(HELD)
        if not any(map(len, shards)) or not held.greedy.any():
            raise UsageError("nothing of what the target wrote can be learnt from: it only repeats itself or ends at once")
        counts = count_tokens(shards, spec.vocab_size)
        wanted = spec.vocab_size if self.student.whole_vocabulary else config.vocabulary
        ids = choose_tokens(counts, wanted, self.manifest.tokenizer.eos_ids)
        covered = coverage(counts, ids)
        tokens = sum(shard.answer_tokens for shard in shards)
        self.say(f"training on {tokens:,} answer tokens; {len(ids):,} draft tokens cover {covered:.1%} of them")
        student = self.student(self.shape, ids, config)

        def batches(parts: list[Shard]) -> Batches:
            width = spec.hidden_states or 0
            return Batches(parts, self._rows, ids, spec.vocab_size, width, config.steps, config.window, config.batch_rows, config.seed)

        training = batches(shards)
        trainer = Trainer(
            student,
            training,
            batches([held]),
            self._budget(training),
            config,
            self.accelerator,
            work.training,
            functools.partial(self._on_look, student),
        )
        verdict = trainer.train()
        self.accelerator.wait_for_everyone()
        if not self.accelerator.is_main_process:
            return None
        speedup, length = self._expected(student, verdict)
        facts = {
            "listens to": ", ".join(self.taps) or "tokens only",
            "draft tokens": f"{len(ids):,}, which cover {covered:.1%} of the corpus",
            "trained weights": f"{sum(parameter.numel() for parameter in student.trained().values()):,}",
            "head": {"frozen": "the target's rows", "borrowed": "the target's rows, not stored", "trained": "trained"}[config.head],
            "processes": self.accelerator.num_processes,
        }
        with staged(config.output, False) as folder:
            student.write(folder)
            card = write_card(config, spec, shards, trainer.state, verdict, facts)
            (folder / "README.md").write_text(card, encoding="utf-8")
        return DistillReport(config.output, verdict, trainer.state, tokens, len(ids), covered, speedup, length)

    def say(self, line: str) -> None:
        """A line of progress on stderr, of the first process."""
        if not self.config.quiet and self.accelerator.is_main_process:
            print(line, file=sys.stderr, flush=True)

    def _rows(self, shard: Shard) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return shard.rows() if shard.complete else self.target.rows(shard)

    def _budget(self, batches: Batches) -> Budget:
        minutes = self.config.total_minutes
        if minutes is None:
            return Budget(steps=max(steps_of(batches, self.config.epochs, self.accelerator.num_processes), 1))
        return Budget(seconds=max(60 * minutes - self.work.seconds, 60 * minutes * LEAST_TRAINING))

    def _on_shard(self, shard: Shard) -> None:
        about: dict[str, Any] = shard.statistics
        lost = about["looping"] + about["repetitive"] + about["short"]
        now = time.monotonic()
        rate = shard.answer_tokens / (now - self._last_shard)
        self._last_shard = now
        answers = f"{shard.answer_tokens:,} answer tokens at {rate:.0f} a second"
        self.say(f"shard {shard.path.stem}: {about['texts']} texts, {answers}, {lost} looping or too short")
        if self.accelerator.is_main_process:
            self.work.set_seconds(self._before + time.monotonic() - self.started)

    def _on_look(self, student: Student, state: State, verdict: Verdict) -> None:
        speedup, length = self._expected(student, verdict)
        places = ", ".join(f"{share:.0%}" for share in verdict.all.by_position)
        promise = f"; expected {speedup:.2f}x with {length} drafted" if speedup else ""
        self.say(
            f"step {state.step}: {verdict.all.tokens_per_pass:.3f} tokens per pass (right by place: {places}), loss {state.loss:.3f}, "
            f"{state.seconds:.0f} s{promise}"
        )

    def _expected(self, student: Student, verdict: Verdict) -> tuple[float, int]:
        """Speed-up and draft length by this machine's cost curve; a draft step's weights as many bits each as the target's."""
        spec, files = self.manifest.target, {entry.name: entry.size for entry in self.manifest.files}
        stored = sum(files[name] for name in spec.weights) * 8 / spec.quantisation.bits
        return expected_speedup(verdict.all, spec.pass_ms or {}, student.step_weights() / stored)
