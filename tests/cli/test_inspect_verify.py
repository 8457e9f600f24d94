"""``edgespec inspect`` and ``edgespec verify`` on small bundles, good and bad."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from edgespec.bundle import open_bundle
from edgespec.cli.inspect import describe, kv_text
from edgespec.cli.output import facts, human_bytes, printable, table
from edgespec.cli.verify import ranges
from edgespec.manifest import MANIFEST_NAME, KvLayer, Source, Variant
from tests.cli.conftest import Run, assert_one_line_error
from tests.helpers.bundles import alphabet_table, make_attention_bundle, make_lookup_bundle
from tests.test_manifest import EXAMPLE


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_lookup_bundle(tmp_path_factory.mktemp("inspect") / "bundle", draft_table=alphabet_table(), chat=True)


def test_inspect_shows_what_the_manifest_says(edgespec: Run, bundle: Path) -> None:
    outcome = edgespec("inspect", bundle)
    assert outcome.code == 0
    for part in ("target\n", "draft\n", "ngram, draft (model draft)", "at most 256 tokens", "target.onnx", "float"):
        assert part in outcome.out


def test_inspect_json_is_the_manifest_and_the_size(edgespec: Run, bundle: Path) -> None:
    data = json.loads(edgespec("inspect", bundle, "--json").out)
    assert data.pop("total_bytes") == sum(path.stat().st_size for path in bundle.iterdir() if path.name != MANIFEST_NAME)
    assert data == json.loads((bundle / MANIFEST_NAME).read_text(encoding="utf-8"))


def test_inspect_shows_every_optional_fact() -> None:
    target = dataclasses.replace(EXAMPLE.target, variants={"cuda": Variant("target.cuda.onnx")})
    text = describe(Path("b"), dataclasses.replace(EXAMPLE, models={**EXAMPLE.models, "target": target}))
    for part in (
        "KL 0.001 nats",
        "99.0%",
        "1: 5.60 ms",
        "8 bits, blocks of 32 (rtn)",
        "someone/model at main",
        "bitwise for widths 2, 4, 6",
        "cpu, cuda",
    ):
        assert part in text
    assert (
        kv_text((KvLayer(3, 64, 64), KvLayer(3, 64, 64), KvLayer(1, 256, 128, 512)))
        == "2 layers of 3 x 64, 1 layer of 1 x 256/128 with window 512"
    )


def test_a_strangers_manifest_cannot_steer_the_terminal(edgespec: Run, tmp_path: Path) -> None:
    bundle = make_lookup_bundle(tmp_path / "b")
    manifest = open_bundle(bundle)
    target = dataclasses.replace(manifest.target, source=Source("\x1b]0;owned\x07 \x9b2J", licence="MIT\x08\x08\x08"))
    (bundle / MANIFEST_NAME).write_text(dataclasses.replace(manifest, models={"target": target}).to_json(), encoding="utf-8")
    outcome = edgespec("inspect", bundle)
    assert outcome.code == 0
    assert "owned" in outcome.out
    assert not {"\x1b", "\x07", "\x08", "\x9b"} & set(outcome.out)


def test_verify_of_a_good_bundle(edgespec: Run, bundle: Path) -> None:
    outcome = edgespec("verify", bundle)
    assert outcome.code == 0
    assert "as the manifest says" in outcome.out
    assert "equal bits for passes of 1-8" in outcome.out
    assert outcome.out.endswith("speculative equals plain on every prompt\n")


def test_verify_json(edgespec: Run, tmp_path: Path) -> None:
    bundle = make_attention_bundle(tmp_path / "b", draft_noise=0.1, chat=True)
    outcome = edgespec("verify", bundle, "--json", "--threads", 1)
    data = json.loads(outcome.out)
    assert outcome.code == (0 if data["ok"] else 1)
    assert data["ok"] == all(case["first_difference"] is None for case in data["cases"])
    assert {case["drafter"] for case in data["cases"]} >= {"ngram", "draft", "tree"}
    assert data["hashes"] == {
        "files": len(open_bundle(bundle).files),
        "bytes": sum(file.size for file in open_bundle(bundle).files),
        "ok": True,
    }


def test_verify_exits_1_when_a_text_differs(edgespec: Run, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime that commits every draft unseen, as a broken acceptance would."""
    from edgespec.runtime import loop
    from edgespec.runtime.accept import accept

    def careless(tree, logits, sampler, **options):  # type: ignore[no-untyped-def]
        found = accept(tree, logits, sampler, **options)
        return dataclasses.replace(found, tokens=(*found.tokens[:-1], found.tokens[-1] ^ 1)) if len(tree) else found

    monkeypatch.setattr(loop, "accept", careless)
    outcome = edgespec("verify", bundle)
    assert outcome.code == 1
    assert "differs from token" in outcome.out
    assert "speculative texts differ from plain" in outcome.out
    assert json.loads(edgespec("verify", bundle, "--json").out)["ok"] is False


def test_verify_finds_an_edited_file(edgespec: Run, tmp_path: Path) -> None:
    bundle = make_lookup_bundle(tmp_path / "b")
    data = bytearray((bundle / "tokenizer.json").read_bytes())
    data[-1] ^= 1
    (bundle / "tokenizer.json").write_bytes(data)
    assert_one_line_error(edgespec("verify", bundle), "tokenizer.json: its sha256 is")


def test_small_texts() -> None:
    assert [human_bytes(count) for count in (0, 999, 1000, 134_500_000, 999_960_000, 2 * 10**12)] == [
        "0 B", "999 B", "1.0 kB", "134.5 MB", "1.0 GB", "2000.0 GB",
    ]  # fmt: skip
    assert ranges((2, 3, 4, 8, 16, 17)) == "2-4, 8, 16-17"
    assert table([("a", "1"), ("bb", "22")], ("x", "y")) == "x    y\n--  --\na    1\nbb  22"
    assert facts([("a", "1"), ("long", "2")]) == "a     1\nlong  2"
    assert printable("a\tb\nc\x1b[31m\r") == "a\tb\nc�[31m�"
