"""A bundle appears whole or not at all, each set of bytes once, and what it says of itself is true."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

import edgespec
from edgespec.bundle import check_hashes, open_bundle
from edgespec.errors import EdgespecError, ExportError
from edgespec.export import ExportReport, parity
from edgespec.export.weights import WeightFile
from edgespec.manifest import MANIFEST_NAME, read_manifest
from tests.export.conftest import export


def places(graph: Path) -> dict[str, tuple[int, int]]:
    """Offset and length in the weights file by initializer."""
    found = {}
    for tensor in onnx.load(graph, load_external_data=False).graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if entries:
            found[tensor.name] = (int(entries["offset"]), int(entries["length"]))
    return found


def test_the_report_and_the_files_agree(pair: ExportReport) -> None:
    assert read_manifest(pair.output) == pair.manifest
    check_hashes(pair.output, open_bundle(pair.output))
    on_disk = {path.name: path.stat().st_size for path in pair.output.iterdir()}
    assert on_disk == pair.sizes
    assert {entry.name for entry in pair.manifest.files} == set(on_disk) - {MANIFEST_NAME}


def test_an_early_exit_adds_no_weights(pair: ExportReport, llama: Path, tmp_path: Path) -> None:
    alone = export(llama, tmp_path / "alone", weights="int8")
    assert pair.sizes["weights.bin"] == alone.sizes["weights.bin"]
    target, draft = places(pair.output / "target.onnx"), places(pair.output / "draft.onnx")
    assert draft
    assert all(target[name] == place for name, place in draft.items())


def test_tied_embedding_and_head_are_the_same_bytes(pair: ExportReport) -> None:
    found = places(pair.output / "target.onnx")
    rows, data = found["model.embed_tokens.weight.rows8"], found["model.embed_tokens.weight.data8"]
    assert rows == data


def test_fidelity_is_recorded_for_both_models(pair: ExportReport) -> None:
    for model in pair.manifest.models.values():
        assert model.fidelity is not None
        assert model.fidelity.rows > 100
        assert 0 < model.fidelity.relative_rms < parity.DIVERGENCE["int8"].relative_rms


def test_how_often_a_draft_is_right_is_recorded(talking: Path, tmp_path: Path) -> None:
    """The target as its own draft always is; its first layer alone is as often as a loop over its own drafts sees."""
    report = export(talking, tmp_path / "bundle", draft=(str(talking), "layers:1"))
    models = report.manifest.models
    assert models["draft"].accuracy == ((1.0,),)
    assert models["draft2"].accuracy is not None
    assert 0.0 <= models["draft2"].accuracy[0][0] < 0.9
    assert models["target"].accuracy is None


def test_attention_takes_the_packed_projection_and_rotates_itself(pair: ExportReport) -> None:
    for name in ("target.onnx", "draft.onnx"):
        nodes = onnx.load(pair.output / name, load_external_data=False).graph.node
        attention = [node for node in nodes if node.op_type == "GroupQueryAttention"]
        assert attention
        assert all(list(node.input[1:3]) == ["", ""] and node.input[9] == "position_ids" for node in attention)
        assert not any(node.op_type == "RotaryEmbedding" for node in nodes)


def test_costs_and_equal_widths_are_recorded_for_the_target(pair: ExportReport) -> None:
    assert pair.manifest.exactness is not None
    assert set(pair.manifest.exactness.widths) <= set(range(1, 129))
    assert pair.manifest.target.pass_ms is not None
    assert list(pair.manifest.target.pass_ms) == ["1", "2", "3", "4", "5", "6", "8"]
    assert all(cost > 0 for cost in pair.manifest.target.pass_ms.values())


def test_the_draft_can_have_other_weights(llama: Path, tmp_path: Path) -> None:
    report = export(llama, tmp_path / "bundle", draft="layers:2", weights="int8", draft_weights="int4")
    assert (report.manifest.models["target"].quantisation.bits, report.manifest.models["draft"].quantisation.bits) == (8, 4)


def test_several_drafts_make_one_tree(llama: Path, tmp_path: Path) -> None:
    report = export(llama, tmp_path / "bundle", draft=("layers:1", "layers:2"), weights="int8")
    manifest = report.manifest
    assert [(drafter.kind, drafter.model) for drafter in manifest.drafters] == [("ngram", None), ("draft", "draft"), ("draft", "draft2")]
    assert [len(manifest.models[name].layers) for name in ("draft", "draft2")] == [1, 2]
    with edgespec.load(report.output, threads=1) as engine:
        plain = engine.generate("hello", drafter="none", max_new_tokens=30).token_ids
        found = engine.generate("hello", drafter="tree", draft_length=4, max_new_tokens=30)
        assert found.token_ids == plain
        assert set(engine._models.loaded) == {"target", "draft", "draft2"}
        passes = [engine._models.loaded[name].passes for name in ("draft", "draft2")]
        assert found.stats.draft_passes == sum(passes)
        assert passes[0] == passes[1] > 0


def test_the_exported_pair_runs_and_speculation_changes_nothing(pair: ExportReport) -> None:
    with edgespec.load(pair.output, threads=1) as engine:
        texts = {drafter: engine.generate("hello", drafter=drafter, max_new_tokens=40).token_ids for drafter in ("none", "ngram", "draft")}
    assert texts["none"] == texts["ngram"] == texts["draft"]
    assert len(texts["none"]) == 40


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device"), RuntimeError("bug")])
def test_nothing_is_left_when_the_export_breaks_off(
    failure: BaseException, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise failure

    monkeypatch.setattr(WeightFile, "_append", broken)
    with pytest.raises(ExportError if isinstance(failure, OSError) else type(failure)):
        export(llama, tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []


def test_an_old_bundle_survives_a_failed_replacement(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = export(llama, tmp_path / "bundle").output
    before = {path.name: path.read_bytes() for path in output.iterdir()}
    with pytest.raises(ExportError, match="--force"):
        export(llama, output)

    def miss(*_: object) -> None:
        raise ExportError("missed")

    with monkeypatch.context() as patch:
        patch.setattr(parity, "require", miss)
        with pytest.raises(ExportError, match="missed"):
            export(llama, output, force=True, weights="int4")
    assert {path.name: path.read_bytes() for path in output.iterdir()} == before
    assert list(tmp_path.iterdir()) == [output]
    assert export(llama, output, force=True, weights="int4").manifest.target.quantisation.bits == 4


def test_force_does_not_replace_what_is_no_bundle(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "me.jpg").write_bytes(b"x")
    with pytest.raises(ExportError, match="not a bundle"):
        export(llama, tmp_path / "photos", force=True)
    assert (tmp_path / "photos" / "me.jpg").read_bytes() == b"x"


def test_a_miss_fails_the_export(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(EdgespecError, match="--max-kl"):
        export(llama, tmp_path / "bundle", weights="int4", max_kl=1e-9)
    assert list(tmp_path.iterdir()) == []


def test_a_polite_kill_leaves_nothing(llama: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "edgespec", "export", str(llama), "-o", str(tmp_path / "new" / "deep" / "bundle")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("target: tracing"):  # printed whole when the step is done: the folder is being filled now
            break
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
