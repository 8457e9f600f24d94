"""Bundles made on the fly: no weights, no network, a few milliseconds each.

``make_lookup_bundle``     the next token is a table look-up of the last one, so acceptance is designed, not lucky
``make_attention_bundle``  a small random decoder on GroupQueryAttention, so a stale KV row changes the text

Both have a byte-level tokenizer: id = byte for 0..255, then ``<eos>`` (256), ``<user>`` (257) and ``<assistant>`` (258).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from edgespec.bundle import describe_file
from edgespec.manifest import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    DrafterSpec,
    KvForm,
    KvLayer,
    Manifest,
    ModelSpec,
    Quantisation,
    Source,
    TokenizerSpec,
)
from edgespec.runtime.models.kv import KV_TYPES, QUANTISED
from edgespec.runtime.models.rows import bias_name

EOS, USER, ASSISTANT = 256, 257, 258
VOCAB = 259
HIDDEN = 16  # width of the attention decoder
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<user>' if message.role == 'user' else '<assistant>' }}{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
FLOAT, INT64, INT32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32
KV_ELEMENTS = {"float32": FLOAT, "float16": TensorProto.FLOAT16, "int8": TensorProto.INT8, "int4": TensorProto.UINT8}
KV_STEPS = {"int8": 127, "int4": 7}
LARGEST_KV = 8.0  # of the attention decoder's keys and values, about


def alphabet_table() -> list[int]:
    """a to b to c ... z to a; every other token goes to a."""
    table = [ord("a")] * VOCAB
    for code in range(ord("a"), ord("z")):
        table[code] = code + 1
    return table


def logits_of_table(table: Sequence[int], seed: int = 0) -> np.ndarray:
    """[V, V] logits whose row t has its largest entry at table[t] and noise elsewhere."""
    logits = np.random.default_rng(seed).normal(size=(len(table), len(table))).astype(np.float32)
    logits[np.arange(len(table)), list(table)] = 10.0
    return logits


def make_lookup_bundle(
    path: Path,
    table: Sequence[int] | np.ndarray | None = None,
    draft_table: Sequence[int] | np.ndarray | None = None,
    *,
    chat: bool | str = False,
    **changes: Any,
) -> Path:
    """A bundle whose target writes ``table[last token]``; a table is V next tokens, or the [V, V] logits themselves.

    ``draft_table`` adds a draft model with that table. ``chat`` adds a chat template, a text this one. ``changes`` are fields of
    ModelSpec (capacity, max_width, ...) or of TokenizerSpec (eos_ids, prefix_ids, ...). Without a table it is the
    alphabet, with a as the answer to everything else.
    """
    graphs = {"target": lookup_graph(_logits(alphabet_table() if table is None else table))}
    if draft_table is not None:
        graphs["draft"] = lookup_graph(_logits(draft_table))
    layers = (KvLayer(heads=1, key_dim=1, value_dim=1),)
    return write_bundle(path, graphs, dict.fromkeys(graphs, layers), chat=chat, **changes)


def make_attention_bundle(
    path: Path,
    *,
    seed: int = 0,
    draft_noise: float | None = None,
    window: int | None = None,
    features: bool = False,
    kv: Sequence[str] = ("float32",),
    chat: bool | str = False,
    **changes: Any,
) -> Path:
    """A bundle with a random two-layer decoder, its layers of different shapes.

    ``draft_noise`` adds a draft: the target's weights moved by that share of noise, 0 for the target itself.
    ``window`` makes the second layer attend to so many positions. ``features`` gives the graph the output ``hidden_states``.
    ``kv`` are types of KV caches, the first one the graphs' own, the others forms of them.
    """
    layers = (KvLayer(heads=2, key_dim=8, value_dim=8), KvLayer(heads=1, key_dim=16, value_dim=16, window=window))
    noise = {"target": 0.0} | ({} if draft_noise is None else {"draft": draft_noise})
    if features:
        changes["hidden_states"] = HIDDEN
    graphs = {name: attention_graph(layers, seed, share, features=features, kv_dtype=kv[0]) for name, share in noise.items()}
    forms = {name: {kind: f"{name}-{kind}.onnx" for kind in kv[1:]} for name in noise}
    path.mkdir(parents=True, exist_ok=True)
    for name, others in forms.items():
        for kind, file in others.items():
            onnx.save(attention_graph(layers, seed, noise[name], features=features, kv_dtype=kind), str(path / file))
    return write_bundle(path, graphs, dict.fromkeys(graphs, layers), chat=chat, kv_dtype=kv[0], forms=forms, **changes)


def write_bundle(
    path: Path,
    graphs: dict[str, onnx.ModelProto],
    layers: dict[str, tuple[KvLayer, ...]],
    *,
    chat: bool | str,
    forms: Mapping[str, Mapping[str, str]] | None = None,
    **changes: Any,
) -> Path:
    """Write graphs, tokenizer and manifest; the format is the one of docs/bundle.md. ``forms`` are files of graphs over other KV caches,
    by model and type."""
    path.mkdir(parents=True, exist_ok=True)
    for name, graph in graphs.items():
        onnx.save(graph, str(path / f"{name}.onnx"))
    tokenizer = byte_tokenizer()
    tokenizer.save(str(path / "tokenizer.json"))
    if chat:
        (path / "chat_template.jinja").write_text(CHAT_TEMPLATE if chat is True else chat, encoding="utf-8")
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items()))
    names = {field.name for field in dataclasses.fields(ModelSpec)}
    spec = ModelSpec(
        architecture="table",
        graph="",
        weights=(),
        layers=(),
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        capacity=256,
        max_width=8,
        quantisation=Quantisation(method="none", bits=32),
        source=Source(checkpoint="tests"),
    )
    spec = dataclasses.replace(spec, **{name: value for name, value in changes.items() if name in names and name != "vocab_size"})
    others = {name: {kind: KvForm(file) for kind, file in (forms or {}).get(name, {}).items()} or None for name in graphs}
    models_ = {name: dataclasses.replace(spec, graph=f"{name}.onnx", layers=layers[name], kv_forms=others[name]) for name in graphs}
    tokenizer_spec = TokenizerSpec(
        file="tokenizer.json",
        fingerprint=hashlib.sha256(vocabulary.encode()).hexdigest(),
        vocab_size=VOCAB,
        eos_ids=(EOS,),
        chat_template="chat_template.jinja" if chat else None,
        eos_token="<eos>",
    )
    tokenizer_spec = dataclasses.replace(tokenizer_spec, **{name: value for name, value in changes.items() if name not in names})
    drafters = (DrafterSpec("ngram"), *((DrafterSpec("draft", "draft"),) if "draft" in graphs else ()))
    files = tuple(describe_file(file) for file in sorted(path.iterdir()) if file.name != MANIFEST_NAME)
    manifest = Manifest(FORMAT_VERSION, "tests", models_, tokenizer_spec, drafters, files)
    (path / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
    return path


def byte_tokenizer() -> Tokenizer:
    """One token per byte, so a character of several bytes takes several tokens."""
    tokenizer = Tokenizer(models.BPE(vocab={symbol: byte for byte, symbol in _byte_symbols().items()}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<eos>", "<user>", "<assistant>")])
    return tokenizer


def _byte_symbols() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + index) for index, byte in enumerate(rest)}}


def _logits(table: Sequence[int] | np.ndarray) -> np.ndarray:
    return table.astype(np.float32) if isinstance(table, np.ndarray) else logits_of_table(table)


def contract(layers: Sequence[KvLayer], kv_dtype: str = "float32") -> tuple[list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]:
    """Inputs and outputs of the graph contract."""
    value = helper.make_tensor_value_info
    inputs = [
        value("input_ids", INT64, [1, "S"]),
        value("position_ids", INT64, [1, "S"]),
        value("seqlens_k", INT32, [1]),
        value("total_sequence_length", INT32, []),
        value("logit_rows", INT64, ["R"]),
    ]
    inputs += [value(bias_name(window), FLOAT, [1, 1, "S", "T"]) for window in {None} | {layer.window for layer in layers}]
    outputs = [value("logits", FLOAT, [1, "R", VOCAB])]
    for index, layer in enumerate(layers):
        for part, dim in (("key", layer.key_dim), ("value", layer.value_dim)):
            shape = [1, layer.heads, "C", KV_TYPES[kv_dtype].columns(dim)]
            inputs.append(value(f"past_key_values.{index}.{part}", KV_ELEMENTS[kv_dtype], shape))
            outputs.append(value(f"present.{index}.{part}", KV_ELEMENTS[kv_dtype], shape))
    return inputs, outputs


def lookup_graph(logits: np.ndarray) -> onnx.ModelProto:
    """logits of a row = a row of the table, by the row's own token. The KV cache is passed through."""
    inputs, outputs = contract([KvLayer(1, 1, 1)])
    nodes = [
        helper.make_node("Gather", ["input_ids", "logit_rows"], ["chosen"], axis=1),
        helper.make_node("Gather", ["table", "chosen"], ["logits"], axis=0),
        helper.make_node("Identity", ["past_key_values.0.key"], ["present.0.key"]),
        helper.make_node("Identity", ["past_key_values.0.value"], ["present.0.value"]),
    ]
    return model(nodes, inputs, outputs, {"table": logits})


def attention_graph(
    layers: Sequence[KvLayer],
    seed: int,
    noise: float = 0.0,
    query_heads: int = 2,
    features: bool = False,
    kv_dtype: str = "float32",
) -> onnx.ModelProto:
    """Embedding of token and position, attention layers with residuals, and a head on the chosen rows."""
    hidden = HIDDEN
    rng, other = np.random.default_rng(seed), np.random.default_rng(seed + 1000)
    weights: dict[str, np.ndarray] = {}

    def weight(name: str, *shape: int, scale: float = 1.0) -> str:
        base, moved = rng.normal(size=shape), other.normal(size=shape)
        weights[name] = (scale * (base + noise * moved)).astype(np.float32)
        return name

    node = helper.make_node
    nodes = [
        node("Gather", [weight("tokens", VOCAB, hidden), "input_ids"], ["token_rows"], axis=0),
        node("Gather", [weight("positions", 4096, hidden, scale=0.7), "position_ids"], ["position_rows"], axis=0),
        node("Add", ["token_rows", "position_rows"], ["x0"]),
    ]
    for i, layer in enumerate(layers):
        widths = {"q": query_heads * layer.key_dim, "k": layer.heads * layer.key_dim, "v": layer.heads * layer.value_dim}
        for part, width in widths.items():
            nodes.append(node("MatMul", [f"x{i}", weight(f"{part}{i}.w", hidden, width, scale=hidden**-0.5)], [f"{part}{i}"]))
        past = [f"past_key_values.{i}.key", f"past_key_values.{i}.value"]
        scales, kind = [], {}
        if kv_dtype in QUANTISED:
            for part, dim in (("k", layer.key_dim), ("v", layer.value_dim)):
                weights[f"{part}{i}.scale"] = np.full((1, layer.heads, 1, dim), LARGEST_KV / KV_STEPS[kv_dtype], np.float32)
            scales = ["", f"k{i}.scale", f"v{i}.scale"]
            kind = {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL", "kv_cache_bit_width": int(kv_dtype[3:])}
        nodes.append(
            node(
                "GroupQueryAttention",
                [f"q{i}", f"k{i}", f"v{i}", *past, "seqlens_k", "total_sequence_length", "", "", "", bias_name(layer.window), *scales],
                [f"attended{i}", f"present.{i}.key", f"present.{i}.value"],
                domain="com.microsoft",
                num_heads=query_heads,
                kv_num_heads=layer.heads,
                **kind,
            )
        )
        nodes.append(node("MatMul", [f"attended{i}", weight(f"o{i}.w", query_heads * layer.value_dim, hidden, scale=0.7)], [f"mixed{i}"]))
        nodes.append(node("Add", [f"x{i}", f"mixed{i}"], [f"x{i + 1}"]))
    nodes.append(node("Gather", [f"x{len(layers)}", "logit_rows"], ["rows"], axis=1))
    nodes.append(node("MatMul", ["rows", weight("head", hidden, VOCAB)], ["logits"]))
    inputs, outputs = contract(layers, kv_dtype)
    if features:
        nodes.append(node("Identity", [f"x{len(layers)}"], ["hidden_states"]))
        outputs.append(helper.make_tensor_value_info("hidden_states", FLOAT, [1, "S", hidden]))
    return model(nodes, inputs, outputs, weights)


def model(
    nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto], weights: dict[str, np.ndarray]
) -> onnx.ModelProto:
    initializers = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "tests", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)
