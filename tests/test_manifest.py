"""The manifest: what is written is read back, and whatever is read from a stranger gives a manifest or a BundleError."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.errors import BundleError
from edgespec.manifest import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    BundleFile,
    DrafterSpec,
    Exactness,
    Fidelity,
    KvLayer,
    Manifest,
    ModelSpec,
    Quantisation,
    Source,
    Tap,
    TokenizerSpec,
    parse_manifest,
    read_manifest,
)

SHA = "0" * 64
FILES = ("model.onnx", "model.bin", "draft.onnx", "tokenizer.json", "chat.jinja", "eagle.tokens")
MODEL = ModelSpec(
    architecture="LlamaForCausalLM",
    graph="model.onnx",
    weights=("model.bin",),
    layers=(KvLayer(3, 64, 64), KvLayer(1, 256, 128, window=512)),
    vocab_size=49152,
    hidden_size=576,
    capacity=2048,
    max_width=16,
    quantisation=Quantisation("rtn", 8, 32),
    source=Source("someone/model", "main", "apache-2.0"),
    fidelity=Fidelity(0.001, 0.99, 0.02, 256),
    pass_ms={"1": 5.6, "2": 6.8},
)
EXAMPLE = Manifest(
    format_version=FORMAT_VERSION,
    created_by="edgespec 0.1.0",
    models={
        "target": dataclasses.replace(MODEL, hidden_states=3 * 576, taps=(Tap("last", 576), Tap("layer.2", 576), Tap("layer.15", 576))),
        "draft": dataclasses.replace(MODEL, graph="draft.onnx", fidelity=None, pass_ms=None),
        "eagle": dataclasses.replace(
            MODEL, layers=MODEL.layers[:1], reads=("layer.2", "layer.15"), features=2 * 576, hidden_states=576, token_ids="eagle.tokens"
        ),
        "medusa": dataclasses.replace(MODEL, layers=(), reads=("last",), features=576, accuracy=((0.6, 0.2), (0.3, 0.1))),
    },
    tokenizer=TokenizerSpec(
        "tokenizer.json", SHA, 49152, (2,), bos_id=1, prefix_ids=(1,), chat_template="chat.jinja", bos_token="<s>", eos_token="</s>"
    ),
    drafters=(DrafterSpec("ngram"), DrafterSpec("draft", "draft"), DrafterSpec("eagle", "eagle"), DrafterSpec("medusa", "medusa")),
    files=tuple(BundleFile(name, 10, SHA) for name in FILES),
    exactness=Exactness("bitwise", (2, 4, 6), "x86_64", "1.32.0"),
)

Path_ = tuple[str | int, ...]


def paths(value: Any, prefix: Path_ = ()) -> list[Path_]:
    """Where every value of a JSON document is, the document itself apart."""
    entries: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        entries = list(value.items())
    elif isinstance(value, list):
        entries = list(enumerate(value))
    return [path for key, item in entries for path in [(*prefix, key), *paths(item, (*prefix, key))]]


def changed(path: Path_, value: Any) -> str:
    """The example's text with ``value`` put at ``path``."""
    data = copy.deepcopy(VALID)
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return json.dumps(data)


def without(path: Path_) -> str:
    """The example's text without the value at ``path``."""
    data = copy.deepcopy(VALID)
    place = data
    for key in path[:-1]:
        place = place[key]
    del place[path[-1]]
    return json.dumps(data)


VALID: Any = json.loads(EXAMPLE.to_json())
VALID_MODEL = VALID["models"]["draft"]
PATHS = paths(VALID)

# Whole numbers far outside any range, and NaN and Infinity, which Python's JSON reader accepts.
SCALARS = st.none() | st.booleans() | st.integers() | st.sampled_from([2**63, -(2**63), 10**400]) | st.floats() | st.text(max_size=20)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4), max_leaves=12
)


def manifest_or_error(text: str) -> Manifest | None:
    """The manifest, or None for a BundleError whose message is one printable line."""
    try:
        return parse_manifest(text)
    except BundleError as error:
        message = str(error)
    assert message.isprintable()
    return None


def test_what_is_written_is_read_back() -> None:
    assert parse_manifest(EXAMPLE.to_json()) == EXAMPLE


def test_defaults_may_be_left_out() -> None:
    for name in ("exactness",):
        assert getattr(parse_manifest(without((name,))), name) is None
    model = parse_manifest(without(("models", "target", "kv_dtype"))).target
    assert model.kv_dtype == "float32"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("format_version",), FORMAT_VERSION + 1, "is newer than"),
        (("format_version",), 0, "format_version"),
        (("format_version",), True, "format_version"),
        (("files", 0, "name"), "../model.onnx", "files[0].name"),
        (("files", 0, "name"), "/etc/passwd", "files[0].name"),
        (("files", 0, "name"), "a/b.onnx", "files[0].name"),
        (("files", 0, "name"), "a\\b.onnx", "files[0].name"),
        (("files", 0, "name"), "..", "files[0].name"),
        (("files", 0, "name"), "model.onnx\n", "files[0].name"),
        (("files", 0, "name"), MANIFEST_NAME, "files[0].name"),
        (("files", 1, "name"), "model.onnx", "listed twice"),
        (("files", 0, "size"), -1, "files[0].size"),
        (("files", 0, "sha256"), "ABC", "files[0].sha256"),
        (("models",), {}, "has no target"),
        (("models", "target", "graph"), "other.onnx", "models.target.graph"),
        (("models", "target", "weights"), ["other.bin"], "models.target.weights[0]"),
        (("models", "target", "layers"), [], "models.target.layers"),
        (("models", "target", "layers", 0, "heads"), 0, "models.target.layers[0].heads"),
        (("models", "target", "layers", 1, "window"), 0, "models.target.layers[1].window"),
        (("models", "target", "vocab_size"), 0, "models.target.vocab_size"),
        (("models", "target", "vocab_size"), "many", 'expected a whole number, found "many"'),
        (("models", "target", "max_width"), 4096, "is more than the capacity"),
        (("models", "target", "kv_dtype"), "int3", "models.target.kv_dtype"),
        (("models", "target", "kv_forms"), {"int3": {"graph": "model.onnx"}}, "models.target.kv_forms"),
        (("models", "target", "kv_forms"), {"float32": {"graph": "model.onnx"}}, "is what kv_dtype says already"),
        (("models", "target", "kv_forms"), {"int8": {"graph": "other.onnx"}}, "models.target.kv_forms.int8.graph"),
        (("models", "target", "quantisation", "bits"), 64, "quantisation.bits"),
        (("models", "target", "pass_ms", "1"), 10**400, "models.target.pass_ms.1"),
        (("models", "target", "pass_ms", "1"), float("nan"), "models.target.pass_ms.1"),
        (("models", "target", "fidelity", "kl"), float("inf"), "models.target.fidelity.kl"),
        (("tokenizer", "file"), "missing.json", "tokenizer.file"),
        (("tokenizer", "chat_template"), "missing.jinja", "tokenizer.chat_template"),
        (("tokenizer", "eos_ids"), [49152], "tokenizer.eos_ids"),
        (("tokenizer", "bos_id"), -1, "tokenizer.bos_id"),
        (("drafters", 1, "model"), "other", "drafters[1].model"),
        (("drafters", 1, "model"), "target", "drafters[1].model"),
        (("drafters", 1, "kind"), "universal", "is not what a drafter of kind universal runs"),
        (("models", "draft", "accuracy"), [[]], "models.draft.accuracy[0]"),
        (("models", "target", "pass_ms"), {"zero": 1.0}, "models.target.pass_ms"),
        (("models", "target", "architecture"), "\ud800", "models.target.architecture"),
        (("models", "a\nb"), VALID_MODEL, "models"),
        (("models", "target", "taps", 0, "name"), "layer.0", "models.target.taps[0].name"),
        (("models", "target", "taps", 1, "name"), "last", "do not all have names of their own"),
        (("models", "target", "taps", 0, "width"), 0, "models.target.taps[0].width"),
        (("models", "target", "taps", 0, "width"), 5, "columns are not those of hidden_states"),
        (("models", "target", "reads"), ["last"], "models.target.features"),
        (("models", "eagle", "reads"), ["layer.3"], "models.eagle.reads[0]"),
        (("models", "eagle", "reads"), [], "names no tap"),
        (("models", "eagle", "reads"), None, "models.eagle.features"),
        (("models", "eagle", "features"), 576, "is not the width of what it reads, 1152"),
        (("models", "eagle", "token_ids"), "../map", "models.eagle.token_ids"),
        (("models", "medusa", "accuracy", 1, 0), 1.5, "models.medusa.accuracy[1][0]"),
        (("drafters", 1, "model"), "eagle", "is not what a drafter of kind draft runs"),
        (("drafters", 2, "model"), "draft", "is not what a drafter of kind eagle runs"),
        (("drafters", 3, "model"), "eagle", "is not what a drafter of kind medusa runs"),
        (("exactness", "widths", 0), 0, "exactness.widths[0]"),
        (("surprise",), 1, "unknown field"),
        (("models", "target", "surprise"), 1, "unknown field"),
    ],
)
def test_errors_name_the_field(path: Path_, value: Any, message: str) -> None:
    with pytest.raises(BundleError) as caught:
        parse_manifest(changed(path, value))
    assert message in str(caught.value)


@pytest.mark.parametrize("path", [("files",), ("tokenizer",), ("models", "target", "graph"), ("models", "target", "layers", 0, "heads")])
def test_missing_fields_are_named(path: Path_) -> None:
    with pytest.raises(BundleError, match=f"{path[-1]}: missing"):
        parse_manifest(without(path))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"format_version": 1, "format_version": 1}',
        '{"format_version": 1, "\\ud800\\n": 1}',
        "[]",
        "null",
        '"edgespec"',
        "1e999",
        "[" * 100_000,
        '{"format_version": ' + "9" * 5000 + "}",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    assert manifest_or_error(text) is None


@given(JSON)
def test_any_json_gives_a_bundle_error(value: Any) -> None:
    assert manifest_or_error(json.dumps(value)) is None


@given(st.sampled_from(PATHS), JSON)
def test_a_changed_value_gives_a_manifest_that_round_trips_or_an_error(path: Path_, value: Any) -> None:
    manifest = manifest_or_error(changed(path, value))
    if manifest is not None:
        assert parse_manifest(manifest.to_json()) == manifest


@given(st.sampled_from(PATHS))
def test_a_missing_value_gives_a_manifest_or_an_error(path: Path_) -> None:
    manifest_or_error(without(path))


@given(st.binary(max_size=200), st.integers(0, len(EXAMPLE.to_json())))
def test_damaged_bytes_give_a_bundle_error(tmp_path_factory: pytest.TempPathFactory, noise: bytes, offset: int) -> None:
    """Noise over part of the file: still only a BundleError, or the example where the noise hit a text field."""
    bundle = tmp_path_factory.mktemp("bundle")
    whole = EXAMPLE.to_json().encode()
    (bundle / MANIFEST_NAME).write_bytes(whole[:offset] + noise + whole[offset + len(noise) :])
    with contextlib.suppress(BundleError):
        assert read_manifest(bundle).format_version == FORMAT_VERSION


NAMES = st.text(string.ascii_lowercase, min_size=1, max_size=8)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """Any valid manifest of one model."""
    names = draw(st.lists(NAMES, min_size=2, max_size=5, unique=True))
    layers = draw(st.lists(st.builds(KvLayer, *[st.integers(1, 512)] * 3, st.none() | st.integers(1, 4096)), min_size=1, max_size=4))
    numbers = st.floats(0, 1e6, allow_nan=False)
    model = dataclasses.replace(
        MODEL,
        architecture=draw(st.text(max_size=20)),
        graph=names[0],
        weights=tuple(names[1:]),
        layers=tuple(layers),
        vocab_size=draw(st.integers(10, 10**6)),
        capacity=draw(st.integers(64, 4096)),
        max_width=draw(st.integers(1, 64)),
        quantisation=draw(st.sampled_from([Quantisation("none", 32), Quantisation("hqq", 4, 32)])),
        fidelity=draw(st.none() | st.builds(Fidelity, numbers, numbers, numbers, st.integers(0, 10**6))),
        pass_ms=draw(st.none() | st.dictionaries(st.integers(1, 64).map(str), numbers, max_size=4)),
    )
    tokenizer = TokenizerSpec(
        names[0],
        SHA,
        model.vocab_size,
        tuple(draw(st.lists(st.integers(0, 9), max_size=3))),
        eos_token=draw(st.none() | st.text(max_size=8)),
    )
    files = tuple(BundleFile(name, draw(st.integers(0, 2**40)), SHA) for name in names)
    return dataclasses.replace(
        EXAMPLE, models={"target": model}, tokenizer=tokenizer, drafters=(DrafterSpec("ngram"),), files=files, exactness=None
    )


@given(manifests())
def test_every_valid_manifest_round_trips(manifest: Manifest) -> None:
    assert parse_manifest(manifest.to_json()) == manifest


def test_a_folder_without_manifest(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no such bundle folder"):
        read_manifest(tmp_path / "nothing")
    with pytest.raises(BundleError, match="not a bundle"):
        read_manifest(tmp_path)
    (tmp_path / MANIFEST_NAME).mkdir()
    with pytest.raises(BundleError, match="cannot be read"):
        read_manifest(tmp_path)
