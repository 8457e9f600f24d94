"""Where models run: what can be asked for, a pair in two places, and nodes that land elsewhere than asked."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import logging
import re
from pathlib import Path

import numpy as np
import pytest

from edgespec.errors import RuntimeFailure, UsageError
from edgespec.manifest import read_manifest
from edgespec.runtime import load
from edgespec.runtime.ort import import_onnxruntime
from edgespec.runtime.providers import providers
from edgespec.runtime.providers.placement import Placement, Placements
from edgespec.runtime.providers.profiles import open_model
from edgespec.runtime.providers.providers import KNOWN, Provider
from edgespec.runtime.providers.session import CPU, Choice

IDLE = "AzureExecutionProvider"
"""Is in every wheel of onnxruntime for Linux and takes none of our nodes: the plainest case of a fallback."""
PROMPT = list(b"the cat sat on the mat and the cat sat on ")

needs_idle = pytest.mark.skipif(
    IDLE not in import_onnxruntime().get_available_providers(), reason=f"this onnxruntime was built without {IDLE}"
)


def names(placements: Placements, model: str) -> list[str]:
    return [choice.name for choice in placements.of_model(model).providers]


@pytest.mark.parametrize(
    ("asked", "target", "draft"),
    [
        (None, [CPU.name], [CPU.name]),
        ("cpu", [CPU.name], [CPU.name]),
        ("CPUExecutionProvider", [CPU.name], [CPU.name]),
        (["CPUExecutionProvider"], [CPU.name], [CPU.name]),
        pytest.param(f"draft={IDLE}", [CPU.name], [IDLE], marks=needs_idle),
        pytest.param(f"target={IDLE}, cpu, draft=cpu", [IDLE, CPU.name], [CPU.name], marks=needs_idle),
        pytest.param(f"{IDLE},draft=cpu", [IDLE], [CPU.name], marks=needs_idle),
        pytest.param({"target": [IDLE, "cpu"], "draft": "cpu"}, [IDLE, CPU.name], [CPU.name], marks=needs_idle),
        pytest.param({"draft": f"{IDLE},cpu"}, [CPU.name], [IDLE, CPU.name], marks=needs_idle),
    ],
)
def test_providers_by_model(asked: object, target: list[str], draft: list[str]) -> None:
    placements = Placements.of(asked)  # type: ignore[arg-type]
    assert (names(placements, "target"), names(placements, "draft")) == (target, draft)


@pytest.mark.parametrize(
    ("asked", "target", "draft"),
    [(3, 3, 3), ("3", 3, 3), ("target=4,draft=1", 4, 1), ("2,draft=1", 2, 1), ({"target": 4, "draft": 1}, 4, 1)],
)
def test_threads_by_model(asked: object, target: int, draft: int) -> None:
    placements = Placements.of(threads=asked)  # type: ignore[arg-type]
    assert (placements.of_model("target").threads, placements.of_model("draft").threads) == (target, draft)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"providers": ""}, "providers: '' is not a name, or MODEL=NAME"),
        ({"providers": []}, "providers: name at least one"),
        ({"providers": "target="}, "'target=' is not a name"),
        ({"providers": "target=cpu;draft=cpu"}, "is not a name"),
        ({"providers": {"draft": []}}, "providers: name at least one"),
        ({"providers": "cpu:gpu"}, "cpu:gpu: only plug-ins have a device"),
        ({"providers": "tpu"}, "providers: tpu is not installed .*this onnxruntime has .*cpu"),
        ({"options": {"cuda": {"device_id": "1"}}}, "provider options for cuda, which no model was put on"),
        ({"threads": "target=4,draft=many"}, "threads: .* nor one for each model such as target=4,draft=1"),
        ({"threads": {"draft": 0}}, "threads: 0 is not a number from 1"),
        ({"threads": True}, "threads: True is not a number from 1"),
    ],
)
def test_what_is_no_placement(keywords: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Placements.of(**keywords)  # type: ignore[arg-type]


@pytest.mark.parametrize("missing", [known for known in KNOWN if known.short != "cpu"], ids=lambda known: known.short)
def test_a_provider_that_is_not_installed_says_how_to_get_it(missing: Provider, attention_bundle: Path) -> None:
    if missing.short in providers.present():
        pytest.skip(f"{missing.short} is installed here")
    with pytest.raises(UsageError, match=re.escape(f"{missing.short} is not installed") + ".*" + re.escape(missing.get)):
        load(attention_bundle, providers=f"draft={missing.short}")


@pytest.mark.parametrize("keywords", [{"providers": "tarjet=cpu"}, {"threads": "tarjet=1"}])
def test_a_model_that_the_bundle_does_not_have(attention_bundle: Path, keywords: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="no model 'tarjet'; it has draft, target"):
        load(attention_bundle, **keywords)  # type: ignore[arg-type]


def test_a_pair_in_two_places_writes_the_plain_text(attention_bundle: Path) -> None:
    """Two sessions of the CPU with other options: the target on two threads, the draft on one."""
    with load(attention_bundle, threads="target=2,draft=1") as engine:
        plain = engine.generate(PROMPT, drafter="none", max_new_tokens=40)
        found = engine.generate(PROMPT, drafter="draft", draft_length=3, max_new_tokens=40)
        assert (engine._model("target")._session.get_session_options().intra_op_num_threads) == 2
        assert (engine._model("draft")._session.get_session_options().intra_op_num_threads) == 1
    assert found.token_ids == plain.token_ids
    assert found.stats.accepted > 0


def test_a_plug_in_that_cannot_be_imported_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_plug_in.py").write_text("raise OSError('libQnnHtp.so: cannot open shared object file')")
    monkeypatch.syspath_prepend(str(tmp_path))
    wanted = dataclasses.replace(providers.provider("qnn"), plugin="broken_plug_in")
    with pytest.raises(UsageError, match=r"broken_plug_in is installed and cannot be imported: libQnnHtp\.so"):
        providers.is_present(wanted)


def test_models_without_graphs_for_the_provider_of_all_stay_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "is_present", lambda _: True)
    monkeypatch.setattr(providers, "_module", lambda _: None)
    placements = Placements.of("qnn").with_usual_graphs(["eagle"])
    for model, name, profile in (("target", "QNNExecutionProvider", "npu"), ("eagle", CPU.name, "cpu")):
        assert (names(placements, model), placements.of_model(model).profile) == ([name], profile)
    assert names(Placements.of("coreml").with_usual_graphs(["eagle"]), "eagle") == ["CoreMLExecutionProvider"]
    assert names(Placements.of("qnn,eagle=coreml").with_usual_graphs(["eagle"]), "eagle") == ["CoreMLExecutionProvider"]


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_what_is_known_to_go_wrong_is_said(attention_bundle: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also where the provider then does not start, as here."""
    spec = read_manifest(attention_bundle).target
    for name, profile, said in (("cuda", "cpu", False), ("webgpu", "cpu", True)):
        caplog.clear()
        place = Placement((Choice(providers.provider(name).name),), 1, profile=profile)
        with contextlib.suppress(RuntimeFailure):
            open_model(attention_bundle, spec, place, capacity=16)
        assert ("draft trees would be verified wrongly" in caplog.text) == said


def test_measurements_belong_to_a_placement() -> None:
    keys = {Placements.of(threads=threads).key for threads in (1, 2, "1,draft=2", "2,draft=1")}
    assert len(keys) == 4


@needs_idle
def test_nodes_on_another_provider_are_reported(attention_bundle: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="edgespec"):
        with load(attention_bundle, providers=IDLE, threads=1) as engine:
            found = engine.generate(PROMPT, drafter="none", max_new_tokens=20)
        warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert len(warnings) == 1
        assert re.search(rf"target.onnx: CPUExecutionProvider runs \d+ \(.*GroupQueryAttention 2.*because {IDLE}", warnings[0])
        caplog.clear()
        # Named as a second choice it is no surprise, but still told to whoever asks.
        load(attention_bundle, providers=[IDLE, "cpu"], threads=1).close()
        assert any("CPUExecutionProvider runs" in record.getMessage() for record in caplog.records)
        assert not any(record.levelno == logging.WARNING for record in caplog.records)
    with load(attention_bundle, threads=1) as engine:
        assert engine.generate(PROMPT, drafter="none", max_new_tokens=20).token_ids == found.token_ids


@needs_idle
def test_strict_providers_refuse_a_fallback(attention_bundle: Path) -> None:
    with pytest.raises(RuntimeFailure, match=r"target.onnx: CPUExecutionProvider runs .* without strict providers it would run so"):
        load(attention_bundle, providers=IDLE, strict_providers=True)
    with pytest.raises(UsageError, match="strict providers: draft may run on the CPU as well"):
        load(attention_bundle, providers=f"draft={IDLE},cpu", strict_providers=True)
    load(attention_bundle, providers="cpu", strict_providers=True).close()


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_provider_that_does_not_start_is_not_replaced_silently(attention_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU build without a driver does: the provider is listed, and the session comes up without it."""
    everywhere = dataclasses.replace(KNOWN[1], plugin=None)
    monkeypatch.setattr(providers, "is_present", lambda wanted: wanted.name in (everywhere.name, CPU.name))
    with pytest.raises(RuntimeFailure, match="CUDAExecutionProvider"):
        load(attention_bundle, providers="cuda", profile="cpu")


@pytest.mark.skipif(importlib.util.find_spec("onnxruntime_ep_openvino") is None, reason="needs onnxruntime-ep-openvino, a plug-in")
def test_a_draft_on_a_plug_in_writes_the_plain_text(attention_bundle: Path, caplog: pytest.LogCaptureFixture) -> None:
    with load(attention_bundle, providers="draft=openvino:cpu", threads=1) as engine:
        plain = engine.generate(PROMPT, drafter="none", max_new_tokens=40)
        found = engine.generate(PROMPT, drafter="draft", draft_length=3, max_new_tokens=40)
    assert found.token_ids == plain.token_ids
    assert found.stats.accepted > 0
    assert "GroupQueryAttention 2" in caplog.text, "OpenVINO takes all but attention"
    with pytest.raises(UsageError, match="finds no npu"):
        load(attention_bundle, providers="openvino:npu")


@pytest.fixture(params=["cuda", "coreml", "dml", "openvino", "webgpu"])
def other(request: pytest.FixtureRequest) -> str:
    """A provider that this machine has besides the CPU."""
    name: str = request.param
    if name not in providers.present():
        pytest.skip(f"{name} is not installed here: {providers.provider(name).get}")
    try:
        providers.choose(name)
    except UsageError as error:
        pytest.skip(str(error))
    return name


def test_another_provider_computes_what_the_cpu_does(attention_bundle: Path, other: str) -> None:
    """Passes of the same shape again and again: of inputs that are bound once, a provider may have the copy of the first pass."""
    spec = read_manifest(attention_bundle).target
    places = (Placements.of(name, 1, profile="cpu").of_model("target") for name in ("cpu", other))
    cpu, model = (open_model(attention_bundle, spec, place, capacity=64) for place in places)
    tokens = np.random.default_rng(0).integers(0, 256, 40).tolist()
    for size in (1, 5, 1, 1, 5, 5, 1):
        start = cpu.length
        wanted, found = (each.run(tokens[start : start + size], range(size)) for each in (cpu, model))
        np.testing.assert_allclose(found, wanted, atol=1e-2 * wanted.std())
    for each in (cpu, model):
        each.run([7, tokens[19], tokens[20]], range(3), (-1, -1, 1))
        each.keep_path(19, (1, 2))
    np.testing.assert_allclose(model.run(tokens[21:26], [4]), cpu.run(tokens[21:26], [4]), atol=1e-2 * wanted.std())


def test_speculation_on_another_provider_writes_its_plain_text(attention_bundle: Path, other: str) -> None:
    """Whole pairs on it, and pairs of it and the CPU."""
    for placed in (other, f"target={other},draft=cpu", f"target=cpu,draft={other}"):
        with load(attention_bundle, providers=placed, threads=1, profile="cpu") as engine:
            plain = engine.generate(PROMPT, drafter="none", max_new_tokens=40)
            for drafter in ("ngram", "draft"):
                found = engine.generate(PROMPT, drafter=drafter, draft_length=3, max_new_tokens=40)
                assert found.token_ids == plain.token_ids, (placed, drafter)


def test_options_of_a_provider_are_its_defaults_and_then_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "is_present", lambda _: True)
    chosen = Placements.of("coreml", options={"coreml": {"MLComputeUnits": "CPUAndNeuralEngine"}}).of_model("target").providers
    assert chosen == (Choice("CoreMLExecutionProvider", (("ModelFormat", "MLProgram"), ("MLComputeUnits", "CPUAndNeuralEngine"))),)
