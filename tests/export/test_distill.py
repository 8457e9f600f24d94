"""Drafts made without data: many texts at once, the corpus, training that can stop at any moment, and what cannot be done."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM, AutoTokenizer

from edgespec.errors import CapacityError, CheckpointError, EdgespecError, ExportError, UsageError
from edgespec.export.distill import DistillConfig, DistillReport, distill, pipeline
from edgespec.export.distill.acceptance import Acceptance, expected_speedup, walk
from edgespec.export.distill.batch_graph import write_batch_graph
from edgespec.export.distill.batch_model import BatchModel
from edgespec.export.distill.batches import Batch, Batches
from edgespec.export.distill.continuous_batching import ContinuousBatching, Request, Text
from edgespec.export.distill.corpus import HELD, Own, Writer, grow_corpus
from edgespec.export.distill.evaluate import held_questions, measure_bundle
from edgespec.export.distill.judge import Verdict, judge
from edgespec.export.distill.questions import Prompt
from edgespec.export.distill.repetition import before_loop, distinct, period_of
from edgespec.export.distill.shards import Entry, Shard
from edgespec.export.distill.students import STUDENTS
from edgespec.export.distill.students.base import Student
from edgespec.export.distill.target import BATCH_GRAPH, Target
from edgespec.export.distill.train import LOOK_SHARE, Budget, Trainer
from edgespec.export.distill.vocabulary import choose_tokens, coverage
from edgespec.export.distill.workplace import Workplace
from edgespec.export.heads.eagle_layout import open_layout
from edgespec.export.heads.medusa import open_medusa
from edgespec.export.pipeline import open_shape
from edgespec.manifest import read_manifest
from edgespec.runtime.models.model import Model
from edgespec.runtime.providers.session import DEFAULT_PROVIDERS
from tests.export.conftest import export
from tests.helpers.bundles import EOS, VOCAB, make_attention_bundle
from tests.helpers.checkpoints import make_checkpoint
from tests.helpers.talking import CONTEXT

SMALL = {
    "tokens": 1200,
    "epochs": 6,
    "shard_texts": 16,
    "answer_tokens": 48,
    "batch_rows": 512,
    "slots": 8,
    "weights": "fp32",
    "precision": "fp32",
}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Any:
    """So that results do not depend on how many cores there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def config_of(target: Path, output: Path, **options: Any) -> DistillConfig:
    return DistillConfig(**{"target": str(target), "output": output, "quiet": True, **SMALL, **options})


@dataclasses.dataclass(frozen=True)
class Made:
    """A finished distillation: its report, its work folder and the target that it is for."""

    target: Path
    report: DistillReport
    config: DistillConfig

    @property
    def work(self) -> Workplace:
        return Workplace(self.config.output)

    def elsewhere(self, folder: Path, **changes: Any) -> DistillConfig:
        """Another distillation of the same target, whose export is there already."""
        config = dataclasses.replace(self.config, output=folder / "draft", **changes)
        shutil.copytree(self.work.target, Workplace(config.output).target)
        return config


@pytest.fixture(scope="module")
def made(talking: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    config = config_of(talking, tmp_path_factory.mktemp("made") / "draft")
    report = distill(config)
    assert report is not None
    return Made(talking, report, config)


@pytest.fixture(scope="module")
def bundle(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target with the draft."""
    path = tmp_path_factory.mktemp("bundles") / "bundle"
    export(made.target, path, eagle=str(made.config.output))
    return path


def open_model(bundle: Path, name: str, capacity: int) -> Model:
    spec = read_manifest(bundle).models[name]
    return Model(bundle / spec.graph, spec, capacity=capacity, threads=1, providers=DEFAULT_PROVIDERS)


# Many texts at once


def batch_of(bundle: Path, texts: int, capacity: int) -> tuple[ContinuousBatching, Model, BatchModel]:
    """Of a bundle's target, with a model that scores beginnings and one for ``texts`` side by side."""
    spec = read_manifest(bundle).target
    graph = bundle / BATCH_GRAPH
    write_batch_graph(bundle / spec.graph, graph)
    model, side_by_side = open_model(bundle, "target", capacity), BatchModel(graph, spec, texts=texts, threads=1)
    return ContinuousBatching(model, side_by_side, VOCAB, frozenset({EOS})), model, side_by_side


@pytest.mark.parametrize("window", [None, 20])
def test_texts_side_by_side_are_what_they_would_be_alone(tmp_path: Path, window: int | None) -> None:
    """Windows, texts of other lengths, and more texts than slots, against plain passes of the graph."""
    bundle = make_attention_bundle(tmp_path / "bundle", features=True, window=window, capacity=400)
    rng = np.random.default_rng(0)
    requests = [Request([5, 6, 30, 31, 32, 33], 2, 0)]
    for index in range(12):
        tokens = [1, 2, 3, *rng.integers(0, 256, 150 if index == 3 else int(rng.integers(2, 20))).tolist()]
        requests.append(Request(tokens, len(tokens), 40, 0.8 * (index % 2), (1, index)))
    batch, model, side_by_side = batch_of(bundle, 5, 260)
    passes = 0
    run = side_by_side.run

    def counted(*args: Any) -> Any:
        nonlocal passes
        passes += 1
        return run(*args)

    side_by_side.run = counted  # type: ignore[method-assign]
    written = dict(batch.write(requests))
    assert sorted(written) == list(range(13))
    assert 0 < passes < sum(len(written[index].tokens) - len(request.tokens) for index, request in enumerate(requests)) / 2
    for index, request in enumerate(requests):
        text = written[index]
        assert (text.start, len(text.tokens) > len(request.tokens)) == (request.start, request.most > 0)
        model.keep(0)
        logits = torch.from_numpy(np.concatenate([model.run([token], [0]).copy() for token in text.tokens])[:, :VOCAB])
        if request.temperature == 0:
            greedy = logits.argmax(-1)
            assert text.tokens[len(request.tokens) :].tolist() == greedy[len(request.tokens) - 1 : -1].tolist()
            assert text.likely[:, 0].tolist() == greedy[text.start :].tolist()
        assert text.likely.shape == (len(text.tokens) - text.start, 8)
        np.testing.assert_allclose(text.features, model.features, atol=1e-2, rtol=2e-3)
        np.testing.assert_allclose(text.log_p, logits[text.start :].log_softmax(-1).topk(8).values, atol=1e-2, rtol=2e-3)
    assert_same_text(dict(batch.write(requests[3:4]))[0], written[3])


def assert_same_text(found: Text, wanted: Text) -> None:
    assert found.tokens.tolist() == wanted.tokens.tolist()
    assert (found.start, found.end, found.likely.shape) == (wanted.start, wanted.end, (len(wanted.tokens) - wanted.start, 8))
    np.testing.assert_allclose(found.features, wanted.features, atol=1e-2, rtol=2e-3)
    np.testing.assert_allclose(found.log_p, wanted.log_p, atol=1e-2, rtol=2e-3)


def test_a_text_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    batch, _, _ = batch_of(make_attention_bundle(tmp_path / "bundle", features=True), 2, 50)
    with pytest.raises(CapacityError, match="60 tokens does not fit into 50"):
        list(batch.write([Request(range(20), 20, 40)]))


def test_loops_are_seen_and_cut() -> None:
    assert period_of([1, 2, 3] * 8) == 3
    assert period_of([*range(50), *[7] * 24]) == 1
    assert period_of([1, 2, 3] * 7) is None  # too short to be sure
    assert period_of(list(range(60))) is None
    assert before_loop([9, 8, *[1, 2, 3] * 9]) == 5
    assert before_loop([9, 8, 7]) == 3
    assert distinct([1, 2, 3, 4] * 20) == pytest.approx(4 / 77)
    assert distinct([1, 2]) == 1.0


# From the target to a draft


def test_a_few_seconds_make_a_draft_that_foretells_its_target(made: Made) -> None:
    state, verdict = made.report.state, made.report.verdict
    untrained = state.looks[0][3]
    assert untrained < 1.1
    assert verdict.all.tokens_per_pass > untrained + 0.12
    assert verdict.all.tokens_per_pass == pytest.approx(state.best, abs=1e-3)
    assert {len(found.by_position) for found in verdict.categories.values()} == {3}
    card = (made.config.output / "README.md").read_text(encoding="utf-8")
    for part in ("--tokens 1200", "inherited", "distinct 4-grams", "| all |", "self-asked", "seed | 0"):
        assert part in card
    assert sorted(path.name for path in made.config.output.iterdir()) == ["README.md", "config.json", "model.safetensors"]


def test_acceptance_that_was_simulated_is_that_of_the_exported_draft(made: Made, bundle: Path) -> None:
    """The draft goes through ``export --eagle``, and drafts along the held-out texts step by step, as the runtime would."""
    head = open_model(bundle, "eagle", CONTEXT)
    name = head.spec.token_ids
    ids = np.fromfile(bundle / name, "<i4") if name else np.arange(head.spec.vocab_size)
    shard = made.work.read_shard(HELD)
    features, likely, _ = shard.rows()
    found = Acceptance.none(3)
    labels_before = 0
    for begin, end, start in zip(shard.bounds[:-1], shard.bounds[1:], shard.starts, strict=True):
        labels_before += end - begin - start
        text = [*shard.tokens[begin:end].tolist(), int(likely[labels_before - 1, 0])]
        found.add(draft_along(head, ids, text, features[begin:end].astype(np.float32), int(start)))
    assert found.passes > 100
    assert found.tokens == made.report.verdict.all.tokens
    assert abs(found.passes - made.report.verdict.all.passes) <= 0.01 * found.passes  # weights are stored in 16 bits


def draft_along(head: Model, ids: np.ndarray, text: list[int], features: np.ndarray, start: int) -> Acceptance:
    """Passes over an answer whose first token, at ``start``, is known."""
    found = Acceptance.none(3)
    head.keep(0)
    last = start
    while last < len(text) - 1:
        while last - head.length > 100:
            head.run(text[head.length + 1 :][:100], [0], features=features[head.length :][:100])
        fresh = slice(head.length, last)
        logits = head.run(text[head.length + 1 : last + 1], [last - head.length - 1], features=features[fresh])
        known, drafted = head.length, []
        for _ in range(3):
            drafted.append(int(ids[logits[0].argmax()]))
            logits = head.run(drafted[-1:], [0], features=head.features[-1:])
        head.keep(known)
        ahead = text[last + 1 : last + 4]
        right = next((place for place, token in enumerate(ahead) if drafted[place] != token), len(ahead))
        found.passes += 1
        found.tokens += right + 1
        last += right + 1
    return found


@pytest.mark.usefixtures("cache")
def test_evaluation_is_of_real_decoding(made: Made, bundle: Path) -> None:
    questions = [question for question in held_questions(made.config) if question.category == "self-asked"][:1]
    measured = measure_bundle(made.config, bundle, questions, repetitions=1)
    assert list(measured.answers) == ["plain, fast", "plain", "ngram", "eagle:3", "ngram,eagle", "auto"]
    assert measured.texts_equal
    assert measured.tokens_per_pass("eagle:3") > 1.05


class Stopped(BaseException):
    """Nothing catches it, as nothing catches a kill."""


def test_stopped_at_any_moment_it_goes_on_to_the_very_same_draft(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = made.elsewhere(tmp_path)
    with monkeypatch.context() as patched:
        stop_after(patched, Writer, "shard", 2)
        with pytest.raises(Stopped):
            distill(config)
    (Workplace(config.output).folder / "corpus" / ".00002.safetensors.7").write_bytes(b"half of a shard")
    config = dataclasses.replace(config, resume=True)
    with monkeypatch.context() as patched:
        stop_after(patched, Trainer, "_step", 13)
        with pytest.raises(Stopped):
            distill(config)
    assert not config.output.exists()
    report = distill(config)
    assert report is not None
    assert report.state.step == made.report.state.step
    for file in ("model.safetensors", "config.json"):
        assert (config.output / file).read_bytes() == (made.config.output / file).read_bytes()


def stop_after(patched: pytest.MonkeyPatch, owner: Any, name: str, calls: int) -> None:
    """Stop at the call after so many of a method."""
    method: Callable[..., Any] = getattr(owner, name)
    left = [calls]

    def wrapped(*args: Any, **options: Any) -> Any:
        if not left[0]:
            raise Stopped
        left[0] -= 1
        return method(*args, **options)

    patched.setattr(owner, name, wrapped)


def test_a_training_may_get_more_time(made: Made, tmp_path: Path) -> None:
    config = made.elsewhere(tmp_path, tokens=None, epochs=4, minutes=0.05, shard_texts=8)
    with pytest.MonkeyPatch.context() as patched:
        stop_after(patched, Trainer, "_step", 1)
        with pytest.raises(Stopped):
            distill(config)
    report = distill(dataclasses.replace(config, resume=True, minutes=0.15))
    assert report is not None
    assert report.state.step > 1
    assert report.state.seconds > 0.05 * 60 * 0.5


def test_a_budget_of_time_is_kept(made: Made, tmp_path: Path) -> None:
    config = made.elsewhere(tmp_path, tokens=None, epochs=4, minutes=0.05, shard_texts=8)
    report = distill(config)
    assert report is not None
    work = Workplace(config.output)
    assert len(work.shards()) >= 2
    # Half of it goes into text, but for 16 texts at the pace of the last 8: twice the last shard's time, which is less than all of it.
    assert work.seconds >= 0.5
    # The training ends soon after its share, which is at least a tenth; the margin is for busy machines.
    share = max(3.0 - work.seconds, 0.3)
    assert report.state.step > 0
    assert report.state.seconds < share + 10.0


def test_another_seed_writes_another_corpus(made: Made) -> None:
    target = Target(made.work.target, 8, 1)
    texts = []
    for seed in (0, 0, 1):
        entries, statistics = Writer(target, dataclasses.replace(made.config, seed=seed, shard_texts=8), Own()).shard(1)
        assert statistics["texts"] == len(entries) > 4
        texts.append([entry.text.tokens.tolist() for entry in entries])
    assert texts[0] == texts[1] != texts[2]


def test_hidden_states_that_were_not_stored_are_computed_again(made: Made, tmp_path: Path) -> None:
    target = Target(made.work.target, 8, 1)
    config = dataclasses.replace(made.config, shard_texts=8)
    entries, statistics = Writer(target, config, Own()).shard(1)
    work = Workplace(tmp_path / "draft")
    work.begin({})
    work.write_shard(1, entries, statistics, 0)
    shard = work.read_shard(1)
    assert not shard.complete
    work.write_shard(2, entries, statistics, 10**9)
    stored = work.read_shard(2)
    assert stored.complete
    for found, wanted in zip(target.rows(shard), stored.rows(), strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found.astype(np.float32), wanted.astype(np.float32), atol=2e-2, rtol=5e-3)


def test_shards_are_smaller_where_time_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text takes a second, by a clock of its own."""
    now, made = [0.0], dict[int, int]()
    monkeypatch.setattr("edgespec.export.distill.corpus.time.monotonic", lambda: now[0])

    class Slow(Writer):
        def __init__(self) -> None: ...

        def shard(self, number: int, size: int | None = None) -> tuple[list[Entry], dict[str, Any]]:
            made[number] = size or 0
            now[0] += made[number]
            return [], {}

    class Work(Workplace):
        def __init__(self) -> None: ...

        def shards(self) -> list[int]:
            return [*made]

        def write_shard(self, *_: Any) -> None: ...

        def read_shard(self, number: int) -> Any:
            return number

    def grown(deadline: float) -> dict[int, int]:
        made.clear()
        now[0] = 0.0
        config = DistillConfig("target", Path("draft"), minutes=1.0)
        grow_corpus(Work(), Slow(), config, rank=0, processes=1, deadline=deadline, on_shard=lambda _: None)
        return made

    assert grown(800.0) == {0: 64, 1: 256, 2: 256, 3: 224}
    assert grown(150.0) == {0: 64, 1: 86}
    assert grown(10.0) == {0: 64, 1: 32}, "something has to be trained on"


def test_judging_takes_a_small_part_of_the_time(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*args: Any) -> Verdict:
        time.sleep(0.25)
        return judge(*args)

    monkeypatch.setattr("edgespec.export.distill.train.judge", slow)
    report = distill(made.elsewhere(tmp_path, tokens=None, epochs=4, minutes=0.15, shard_texts=8))
    assert report is not None
    # One before the training and one after it, and of the others at most so many; twenty would take five seconds of less than nine.
    assert 2 <= len(report.state.looks) <= 3 + report.state.seconds * LOOK_SHARE / 0.25


def test_the_users_prompts_and_texts_come_first(made: Made, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("\n".join(f"what of the owl {number}" for number in range(10)), encoding="utf-8")
    (tmp_path / "book.txt").write_text("the old owl sings near the round boat. " * 12, encoding="utf-8")
    config = dataclasses.replace(
        made.config, output=tmp_path / "draft", prompts=tmp_path / "prompts.txt", texts=(tmp_path / "book.txt",), shard_texts=24
    )
    target = Target(made.work.target, 8, 1)
    own = Own.read(config, target)
    held, _ = own.of_shard(HELD, 24, 24)
    assert [prompt.turns for prompt in held] == [("what of the owl 9",)]
    entries, _ = Writer(target, config, own).shard(1)
    assert [entry.prompt for entry in entries if entry.category == "prompts"] == [f"what of the owl {n}" for n in range(9)] * 2
    assert [entry.greedy for entry in entries if entry.category == "prompts"] == [True] * 9 + [False] * 9
    assert [len(entry.text.tokens) for entry in entries if entry.category == "text"] == [256, 212]


def test_a_target_without_chat_goes_on_with_plain_texts(made: Made, tmp_path: Path) -> None:
    shutil.copytree(made.work.target, tmp_path / "bundle")
    manifest = json.loads((tmp_path / "bundle" / "edgespec.json").read_text(encoding="utf-8"))
    manifest["tokenizer"]["chat_template"] = None
    (tmp_path / "bundle" / "edgespec.json").write_text(json.dumps(manifest), encoding="utf-8")
    entries, statistics = Writer(Target(tmp_path / "bundle", 8, 1), made.config, Own()).shard(1)
    assert statistics["texts"] > 12
    assert {entry.category for entry in entries} == {"plain"}


# Parts


def test_a_walk_counts_passes_as_decoding_would() -> None:
    right = np.array([[1, 1, 0, 1, 0, 1], [1, 0, 1, 0, 0, 0], [0, 1, 0, 0, 0, 0]], bool)
    found = walk(right)
    # Token 0: two accepted, then token 3: one, then token 5: one, which is the text's last.
    assert (found.passes, found.tokens) == (3, 7)
    assert found.reached.tolist() == [3, 3, 1, 0]
    assert found.by_position == [1.0, pytest.approx(1 / 3), 0.0]


def test_expected_speed_follows_the_cost_curve() -> None:
    found = Acceptance(np.array([100, 50, 25, 12]), 100, 187)
    flat, steep = {"1": 10.0, "4": 10.0}, {"1": 10.0, "4": 40.0}
    assert expected_speedup(found, flat, 0.0)[0] == pytest.approx(1.87 * 10 / 10.15)
    assert expected_speedup(found, flat, 0.0)[1] == 3
    assert expected_speedup(found, steep, 0.1) == (1.0, 0)


def test_the_vocabulary_is_what_comes_most() -> None:
    counts = np.zeros(1000, np.int64)
    counts[[7, 500, 900]] = 10, 100, 50
    assert choose_tokens(counts, 3, [999]).tolist() == [500, 900, 999]
    assert coverage(counts, np.array([500, 900])) == pytest.approx(150 / 160)
    assert len(choose_tokens(counts, None)) == 256
    assert len(choose_tokens(np.ones(1000, np.int64), None)) == 1000


def random_batch(shape_size: int, rows: int = 20, texts: int = 4, steps: int = 3, tokens: int = 60) -> Batch:
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(texts, rows + steps, 8, generator=generator)
    labels = torch.randint(0, tokens, (texts, rows + steps, 8), generator=generator)
    labelled = torch.ones(texts, rows + steps, dtype=torch.bool)
    for values in (p, labelled):
        values[:, rows:] = 0
    p = p / p.sum(-1, keepdim=True).clamp(min=1e-9)
    features = torch.randn(texts, rows, shape_size, generator=generator)
    return Batch(torch.randint(0, 250, (texts, rows + steps), generator=generator), features, labels, p, labelled)


def make_student(kind: str, talking: Path, ids: np.ndarray | None = None, **options: Any) -> Student:
    config = config_of(talking, Path("draft"), kind=kind, **options)
    shape = open_shape(pipeline.export_config(config, Path("target")))
    return STUDENTS[kind](shape, np.arange(20, 80) if ids is None else ids, config)


def test_out_of_memory_the_same_step_goes_in_smaller_pieces(talking: Path, tmp_path: Path) -> None:
    gradients = []
    for most in (4, 1):
        student = make_student("eagle", talking)
        forward = student.forward

        def limited(batch: Batch, counts: torch.Tensor, most: int = most, forward: Any = forward) -> torch.Tensor:
            if len(batch) > most:
                raise torch.OutOfMemoryError("out of memory")
            return forward(batch, counts)

        student.forward = limited  # type: ignore[method-assign]
        trainer = trainer_of(student, tmp_path)
        trainer._step(random_batch(128), 0.5)
        gradients.append({name: tensor.detach().clone() for name, tensor in student.trained().items()})
    for name, wanted in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], wanted, atol=1e-5, rtol=1e-4)


def test_bfloat16_learns_the_same_with_less_precision(talking: Path, tmp_path: Path) -> None:
    """The same steps in both: weights stay float32, and the loss falls alike."""
    losses: dict[str, list[float]] = {}
    for precision in ("fp32", "bf16"):
        trainer = trainer_of(make_student("eagle", talking, precision=precision, learning_rate=3e-3), tmp_path)
        losses[precision] = []
        for _ in range(20):
            trainer._step(random_batch(128), 0.3)
            losses[precision].append(trainer.state.loss)
        assert {tensor.dtype for tensor in trainer.student.trained().values()} == {torch.float32}
    assert losses["fp32"] != losses["bf16"]
    assert losses["fp32"][-1] < 0.9 * losses["fp32"][0]
    np.testing.assert_allclose(losses["bf16"], losses["fp32"], rtol=0.03)


def test_a_device_too_small_for_one_text_is_said_so(talking: Path, tmp_path: Path) -> None:
    student = make_student("eagle", talking)

    def none(_batch: Batch, _counts: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("out of memory")

    student.forward = none  # type: ignore[method-assign]
    with pytest.raises(CapacityError, match="--window"):
        trainer_of(student, tmp_path)._step(random_batch(128), 0.5)


def trainer_of(student: Student, folder: Path) -> Trainer:
    nothing = Batches([], lambda _: (np.zeros(0), np.zeros(0), np.zeros(0)), np.arange(60), 288, 128, 3, 64, 512, 0)
    return Trainer(student, nothing, nothing, Budget(steps=10), student.config, Accelerator(cpu=True), folder / "training.pt")


def test_medusa_heads_learn_and_are_written_as_published(talking: Path, tmp_path: Path) -> None:
    student = make_student("medusa", talking, learning_rate=3e-2)
    batch = random_batch(64)
    trainer = trainer_of(student, tmp_path)
    losses = []
    for _ in range(30):
        trainer._step(batch, 0.3)
        losses.append(trainer.state.loss)
    assert losses[-1] < 0.8 * losses[0]
    student.write(tmp_path)
    heads = open_medusa(str(tmp_path), student.shape)
    assert (heads.count, heads.depth, heads.taps) == (3, 1, ("last",))
    hidden = student.hidden(batch.tokens, batch.features)
    block = [heads.checkpoint.read_float(f"1.0.linear.{part}") for part in ("weight", "bias")]
    again = batch.features + torch.nn.functional.silu(torch.nn.functional.linear(batch.features, *block))
    torch.testing.assert_close(again, hidden[1], atol=5e-3, rtol=1e-2)
    matrix = heads.checkpoint.read_float("1.1.weight")
    torch.testing.assert_close(matrix[20:80], student.head.detach(), atol=1e-3, rtol=1e-2)


def test_a_standalone_draft_begins_as_layers_of_the_target_and_learns(made: Made, tmp_path: Path) -> None:
    """With all of its layers it is the target itself; with fewer it learns, and transformers reads what is written."""
    ids = np.arange(288)

    def batches(shards: list[Shard]) -> Batches:
        return Batches(shards, Shard.rows, ids, 288, 128, 3, 320, 512, 0)

    held = batches([made.work.read_shard(HELD)])
    assert min(judge(make_student("lm", made.target, ids, layers=3), held).all.by_position) > 0.99
    student = make_student("lm", made.target, ids, layers=1, learning_rate=2e-3)
    before = judge(student, held).all.tokens_per_pass
    training = batches(made.work.closed_corpus())
    trainer = Trainer(student, training, held, Budget(steps=30), student.config, Accelerator(cpu=True), tmp_path / "training.pt")
    assert trainer.train().all.tokens_per_pass > before + 0.1
    student.write(tmp_path)
    tokens = torch.arange(40, 60)[None]
    with torch.no_grad():
        found = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)(tokens).logits
        wanted = student.hidden(torch.cat([tokens, tokens[:, :3]], 1), torch.zeros(1, 20, 0))[0][:, :19] @ student.head.T
    torch.testing.assert_close(found[:, 1:], wanted, atol=2e-2, rtol=1e-2)
    assert len(AutoTokenizer.from_pretrained(tmp_path)) == VOCAB


def test_a_borrowed_head_is_the_targets_rows_and_takes_no_room(talking: Path, tmp_path: Path) -> None:
    layouts = {}
    for head in ("frozen", "borrowed"):
        student = make_student("eagle", talking, head=head)
        (tmp_path / head).mkdir()
        student.write(tmp_path / head)
        layouts[head] = open_layout(str(tmp_path / head), student.shape)
    sizes = {head: (tmp_path / head / "model.safetensors").stat().st_size for head in layouts}
    assert sizes["frozen"] - sizes["borrowed"] >= 60 * 64 * 2
    for layout in layouts.values():
        assert layout.token_ids is not None
        assert layout.token_ids.tolist() == list(range(20, 80))
        assert layout.structure.rows == 60
        torch.testing.assert_close(layout.checkpoint.read_float("lm_head.weight"), student.head.detach(), atol=1e-3, rtol=1e-3)


# What cannot be done


def refused(config: DistillConfig, kind: type[EdgespecError] = UsageError) -> str:
    with pytest.raises(kind) as caught:
        distill(config)
    assert "\n" not in str(caught.value)
    assert not config.output.exists()
    return str(caught.value)


def test_files_of_the_user_that_are_malformed(talking: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"turns": ["hello"]}\n{"turn": 3}\n', encoding="utf-8")
    assert "line 2" in refused(config_of(talking, tmp_path / "draft", prompts=prompts))
    plain = tmp_path / "prompts.txt"
    plain.write_text('hello\n{"turns": ["hello"]}\n', encoding="utf-8")
    assert "line 2 looks like JSON" in refused(config_of(talking, tmp_path / "draft", prompts=plain))
    plain.write_text("\n\n", encoding="utf-8")
    assert "no prompts" in refused(config_of(talking, tmp_path / "draft", prompts=plain))
    assert "cannot be read" in refused(config_of(talking, tmp_path / "draft", texts=(tmp_path / "nowhere",)))
    assert not Workplace(tmp_path / "draft").folder.exists()


def test_places_that_are_taken(made: Made, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="exists already"):
        distill(made.config)
    config = made.elsewhere(tmp_path)
    Workplace(config.output).begin(config.settings())
    assert "--resume" in refused(config)
    assert "seed 0 and not 1" in refused(dataclasses.replace(config, resume=True, seed=1))
    work = Workplace(config.output)
    work.check(dataclasses.replace(config, space=1, window=64, learning_rate=0.5).settings(), resume=True)
    work.training.write_bytes(b"")  # the training has begun
    work.check(dataclasses.replace(config, space=1).settings(), resume=True)
    assert "window" in refused(dataclasses.replace(config, resume=True, window=64))


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"kind": "other"}, "lm"),
        ({"head": "other"}, "--head"),
        ({"kind": "medusa", "head": "borrowed"}, "medusa"),
        ({"kind": "lm", "head": "trained"}, "lm"),
        ({"kind": "lm", "vocabulary": 64}, "--vocabulary"),
        ({"minutes": 3.0}, "exclude"),
        ({"tokens": 0}, "--tokens"),
        ({"minutes": float("nan"), "tokens": None}, "--minutes"),
        ({"taps": (0, 1)}, "--taps"),
        ({"kind": "medusa", "taps": (1, 2)}, "--taps: is for drafts of kind eagle"),
        ({"kind": "lm", "intermediate": 64}, "--intermediate: is for drafts of kind eagle"),
        ({"layers": 4}, "--layers: is for drafts of kind lm"),
        ({"minutes": 3.0, "tokens": None, "epochs": 8}, "--epochs: goes with --tokens"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], part: str) -> None:
    with pytest.raises(UsageError, match=part):
        config_of(Path("target"), Path("draft"), **options)


def test_a_target_that_only_repeats_itself(tmp_path: Path) -> None:
    """Random weights: the text is a loop from its first token on."""
    bundle = make_attention_bundle(tmp_path / "bundle", features=True, chat=True, capacity=1024)
    shutil.copytree(bundle, Workplace(tmp_path / "draft").target)
    checkpoint = make_checkpoint(tmp_path / "checkpoint")
    entries, statistics = Writer(
        Target(bundle, 8, 1), config_of(checkpoint, tmp_path / "draft", answer_tokens=120, shard_texts=8), Own((Prompt("own", ("aaa",)),))
    ).shard(1)
    assert statistics["looping"] + statistics["repetitive"] > 0
    assert all(period_of(entry.text.tokens[entry.text.start :].tolist()) is None for entry in entries)


def test_no_room_on_the_disk(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = made.elsewhere(tmp_path, shard_texts=8)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, 10**6))
    assert "1 MB free" in refused(config, ExportError)


def test_damaged_parts_of_a_work_folder(made: Made, tmp_path: Path) -> None:
    config = dataclasses.replace(made.elsewhere(tmp_path), resume=True)
    work = Workplace(config.output)
    shutil.copytree(made.work.folder / "corpus", work.folder / "corpus")
    shutil.copy(made.work.folder / "settings.json", work.folder)
    work.training.write_bytes(b"nonsense")
    assert "delete it to train anew" in refused(config)
    torch.save({"student": shutil.rmtree}, work.training)  # would be code
    assert "delete it to train anew" in refused(config)
    path = work.folder / "corpus" / "00001.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert "damaged" in refused(config, CheckpointError)


def test_a_context_too_short_for_answers(made: Made, tmp_path: Path) -> None:
    assert "--answer-tokens" in refused(made.elsewhere(tmp_path, answer_tokens=400), CapacityError)


def test_shards_refuse_bounds_that_cannot_be(made: Made, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    source = made.work.folder / "corpus" / "00001.safetensors"
    shard: Shard = made.work.read_shard(1)
    tensors = load_file(source)
    tensors["texts"][1, 0] = 0
    about = {"categories": json.dumps(sorted(set(shard.categories))), "prompts": json.dumps(shard.prompts), "statistics": "{}"}
    work = Workplace(tmp_path / "draft")
    work.begin({})
    save_file(tensors, work.folder / "corpus" / "00001.safetensors", metadata=about)
    with pytest.raises(CheckpointError, match="damaged"):
        work.read_shard(1)
