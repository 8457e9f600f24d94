"""Tiny draft heads, written in the layouts in which real ones are published, and their forward from the papers' formulas."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.nn import functional
from transformers import AutoModelForCausalLM

from edgespec.export import ExportConfig
from edgespec.export.checkpoint import open_checkpoint
from edgespec.export.heads import Head, TargetShape
from edgespec.export.heads.base import Workplace
from edgespec.export.recipe import Plan
from edgespec.export.trace.model import build_empty, matrix_names
from edgespec.export.weights import WeightFile
from edgespec.manifest import KvLayer, ModelSpec, Quantisation, Source, Tap
from tests.helpers.bundles import VOCAB
from tests.helpers.checkpoints import BASE, CAPACITY

H, V, I = BASE["hidden_size"], BASE["vocab_size"], BASE["intermediate_size"]  # noqa: E741
HEADS, KV_HEADS, DIM = BASE["num_attention_heads"], BASE["num_key_value_heads"], BASE["head_dim"]
LAYERS = 8  # of the target: EAGLE-3 then reads what enters layers 2, 4 and 5
THETA, EPSILON = 10000.0, 1e-6
REDUCED = 120  # tokens that an EAGLE-3 head scores
Tensors = dict[str, torch.Tensor]


def medusa_tensors(heads: int = 3, layers: int = 1, seed: int = 0) -> Tensors:
    """Random heads over the tiny target."""
    random = _random(seed)
    tensors: Tensors = {}
    for head in range(heads):
        for layer in range(layers):
            tensors |= {f"{head}.{layer}.linear.weight": random(H, H), f"{head}.{layer}.linear.bias": random(H)}
        tensors[f"{head}.{layers}.weight"] = random(V, H)
    return tensors


def write_medusa(folder: Path, tensors: Tensors, form: str = "pt") -> Path:
    """A folder as published: the configuration says 2 heads whatever the file has."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "tiny"}))
    if form == "pt":
        torch.save(tensors, folder / "medusa_lm_head.pt")
    else:
        save_file(tensors, folder / "medusa_lm_head.safetensors")
    return folder


def medusa_logits(tensors: Tensors, features: torch.Tensor) -> torch.Tensor:
    """[n, heads, V] for hidden states [n, H]."""
    heads = 1 + max(int(name.partition(".")[0]) for name in tensors)
    layers = sum(name.startswith("0.") and name.endswith("linear.weight") for name in tensors)
    found = []
    for head in range(heads):
        x = features
        for layer in range(layers):
            x = x + functional.silu(x @ tensors[f"{head}.{layer}.linear.weight"].T + tensors[f"{head}.{layer}.linear.bias"])
        found.append(x @ tensors[f"{head}.{layers}.weight"].T)
    return torch.stack(found, 1)


@dataclasses.dataclass(frozen=True)
class Eagle:
    """An EAGLE head: its tensors by the names of EAGLE-1, its configuration, and its layout: "1", "3" or "speculators"."""

    layout: str
    tensors: Tensors
    config: dict[str, Any]

    def write(self, folder: Path, form: str = "safetensors") -> Path:
        """As published: ``midlayer`` in EAGLE-3's own layout, and the decoder's settings one level down in speculators'."""
        folder.mkdir(parents=True)
        layer = {
            "model_type": "llama", "hidden_size": H, "intermediate_size": I, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
            "head_dim": DIM, "rms_norm_eps": EPSILON, "vocab_size": V, "max_position_embeddings": CAPACITY, "num_hidden_layers": 1,
            "hidden_act": "silu", "rope_theta": THETA,
        }  # fmt: skip
        config = {"transformer_layer_config": layer, **self.config} if self.layout == "speculators" else {**layer, **self.config}
        (folder / "config.json").write_text(json.dumps(config))
        stored = self.tensors
        if self.layout == "3":
            stored = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in stored.items()}
        stored = {name: tensor.contiguous() for name, tensor in stored.items()}
        if form == "bin":
            torch.save(stored, folder / "pytorch_model.bin")
        else:
            save_file(stored, folder / "model.safetensors")
        return folder

    @property
    def target_ids(self) -> torch.Tensor:
        """The target's id of each token that the head scores."""
        if "d2t" not in self.tensors:
            return torch.arange(V)
        return self.tensors["d2t"] + torch.arange(len(self.tensors["d2t"]))

    def forward(
        self, target: TargetMatrices, tokens: list[int], given: torch.Tensor, own: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [n, Vd] and the head's own features [n, H] for a whole text without a cache.

        ``given`` are features of the target for the first tokens, [a, F], and ``own`` [n - a, H] the head's own for the others.
        """
        weights = self.tensors
        embedded = weights.get("embed_tokens.weight", target.embedding)[torch.tensor(tokens)]
        if self.layout == "1":
            hidden = torch.cat([embedded, torch.cat([given, own])], -1) @ weights["fc.weight"].T + weights.get("fc.bias", torch.zeros(H))
            hidden = self._layer(hidden, hidden, hidden)
            return hidden @ weights.get("lm_head.weight", target.head).T, hidden
        if self.config.get("norm_before_fc"):
            given = self._norm(given, "input_norm")
        if self.config.get("fc_norm"):
            given = torch.cat([self._norm(part, f"fc_norm.{index}") for index, part in enumerate(given.split(H, -1))], -1)
        hidden = torch.cat([given @ weights["fc.weight"].T, own])
        normed = self._norm(hidden, "layers.0.hidden_norm")
        read = torch.cat([self._norm(embedded, "layers.0.input_layernorm"), normed], -1)
        hidden = self._layer(read, normed if self.config.get("norm_before_residual") else hidden, None)
        normed = self._norm(hidden, "norm")
        return normed @ weights.get("lm_head.weight", target.head).T, normed if self.config.get("norm_output") else hidden

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) * self.tensors[f"{name}.weight"]

    def _layer(self, read: torch.Tensor, residual: torch.Tensor, first: torch.Tensor | None) -> torch.Tensor:
        """Attention over ``read`` [n, H or 2H] and the gated unit behind it."""
        if first is not None and "layers.0.input_layernorm.weight" in self.tensors:
            read = self._norm(first, "layers.0.input_layernorm")
        hidden = residual + self._attend(read)
        x = self._norm(hidden, "layers.0.post_attention_layernorm")
        gate, up, down = (self.tensors[f"layers.0.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        return hidden + (functional.silu(x @ gate.T) * (x @ up.T)) @ down.T

    def _attend(self, x: torch.Tensor) -> torch.Tensor:
        count = len(x)
        q, k, v = (self._project(x, name).view(count, -1, DIM).transpose(0, 1) for name in ("q", "k", "v"))
        angles = torch.arange(count)[:, None] * THETA ** (-torch.arange(0, DIM, 2) / DIM)
        q, k = (_rotate(part, angles.cos(), angles.sin()) for part in (q, k))
        k, v = (part.repeat_interleave(HEADS // KV_HEADS, 0) for part in (k, v))
        scores = (q @ k.transpose(-1, -2) * DIM**-0.5).masked_fill(torch.ones(count, count).triu(1).bool(), -torch.inf)
        mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(count, -1)
        return self._project(mixed, "o")

    def _project(self, x: torch.Tensor, name: str) -> torch.Tensor:
        name = f"layers.0.self_attn.{name}_proj"
        return x @ self.tensors[f"{name}.weight"].T + self.tensors.get(f"{name}.bias", torch.zeros(()))


@dataclasses.dataclass(frozen=True)
class TargetMatrices:
    """The target's embedding and head, [V, H]."""

    embedding: torch.Tensor
    head: torch.Tensor


def make_eagle(layout: str, seed: int = 0, *, reduced: bool = True, bias: bool = False, taps: int = 3, **norms: bool) -> Eagle:
    """A random head. ``reduced`` gives EAGLE-3 a vocabulary of its own, ``bias`` gives EAGLE-1 some, ``norms`` are of speculators."""
    random = _random(seed)
    three = layout != "1"
    wide = 2 * H if three else H
    tensors: Tensors = {"fc.weight": random(H, taps * H if three else 2 * H)}
    for name, rows, columns in (
        ("self_attn.q_proj", HEADS * DIM, wide), ("self_attn.k_proj", KV_HEADS * DIM, wide), ("self_attn.v_proj", KV_HEADS * DIM, wide),
        ("self_attn.o_proj", H, HEADS * DIM), ("mlp.gate_proj", I, H), ("mlp.up_proj", I, H), ("mlp.down_proj", H, I),
    ):  # fmt: skip
        tensors[f"layers.0.{name}.weight"] = random(rows, columns)
    names = ["layers.0.post_attention_layernorm"]
    config: dict[str, Any] = dict(norms)
    if three:
        names += ["layers.0.hidden_norm", "layers.0.input_layernorm", "norm"]
        names += [f"fc_norm.{index}" for index in range(taps)] if norms.get("fc_norm") else []
        config |= {"speculators_model_type": "eagle3"} if layout == "speculators" else {"architectures": ["LlamaForCausalLMEagle3"]}
        config["draft_vocab_size"] = REDUCED if reduced else V
        tensors["lm_head.weight"] = random(REDUCED if reduced else V, H)
        if reduced:
            ids = torch.randperm(V, generator=torch.Generator().manual_seed(seed))[:REDUCED].sort().values
            tensors |= {"d2t": ids - torch.arange(REDUCED), "t2d": torch.isin(torch.arange(V), ids)}
    tensors |= {f"{name}.weight": 1 + random(H) for name in names}
    if norms.get("norm_before_fc"):
        tensors["input_norm.weight"] = 1 + random(taps * H)
    if bias:
        tensors |= {"fc.bias": random(H), "layers.0.self_attn.q_proj.bias": random(HEADS * DIM)}
    return Eagle(layout, tensors, config)


def _random(seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: 0.2 * torch.randn(*shape, generator=generator)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def target_shape(checkpoint: Path) -> TargetShape:
    """The target as heads are checked against it, without a trace."""
    opened = open_checkpoint(str(checkpoint))
    model = build_empty(opened.config_copy())
    opened.bind(model)
    return TargetShape(H, V, model.config.num_hidden_layers, opened, *matrix_names(model))


def write_alone(head: Head, folder: Path, taps: tuple[str, ...]) -> ModelSpec:
    """A head in float, without a bundle, for a target that gives ``taps``."""
    given = tuple(Tap(tap, H) for tap in taps)
    layers = (KvLayer(KV_HEADS, DIM, DIM),)
    target = ModelSpec("llama", "none", (), layers, V, H, CAPACITY, 8, Quantisation("none", 32), Source("tests"), taps=given)
    with WeightFile(folder / "weights.bin") as weights:
        return head.write(Workplace(folder, weights, ExportConfig("none", folder, weights="fp32"), target, Plan(None), VOCAB))


@dataclasses.dataclass(frozen=True)
class Text:
    """What the tiny target writes after a prompt, and its hidden states: entering each layer and behind the last norm, [n, H] each."""

    tokens: list[int]
    hidden: tuple[torch.Tensor, ...]
    target: TargetMatrices

    @classmethod
    def of(cls, checkpoint: Path, prompt: list[int], count: int) -> Text:
        model = AutoModelForCausalLM.from_pretrained(checkpoint, attn_implementation="eager", dtype=torch.float32).eval()
        tokens = list(prompt)
        with torch.no_grad():
            for _ in range(count):
                tokens.append(int(model(torch.tensor([tokens])).logits[0, -1, :VOCAB].argmax()))
            states = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        target = TargetMatrices(model.get_input_embeddings().weight.detach(), model.get_output_embeddings().weight.detach())
        return cls(tokens, tuple(state[0] for state in states), target)


def oracle_medusa(text: Text, heads: int = 3) -> Tensors:
    """Heads that are right about ``text``: their last matrix is fitted to it, with fewer positions than a hidden state has numbers."""
    tensors: Tensors = {}
    for head in range(heads):
        rows = len(text.tokens) - 2 - head
        wanted = functional.one_hot(torch.tensor(text.tokens[2 + head :]), V).float()
        tensors |= {f"{head}.0.linear.weight": torch.zeros(H, H), f"{head}.0.linear.bias": torch.zeros(H)}
        tensors[f"{head}.1.weight"] = _fitted(text.hidden[-1][:rows], wanted)
    return tensors


def oracle_eagle(text: Text, layout: str, layers: tuple[int, ...] = ()) -> Eagle:
    """A head that is right about ``text``. Its decoder layer adds nothing. EAGLE-1's ``fc`` foretells the next hidden state, so that a
    whole chain is right; EAGLE-3's, over what enters ``layers``, gives each token a code: the first token of a chain is right."""
    eagle = make_eagle(layout)
    tensors = dict(eagle.tensors)
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        tensors[f"layers.0.{name}.weight"] = torch.zeros_like(tensors[f"layers.0.{name}.weight"])
    following = torch.tensor(text.tokens[1:])
    if layout == "1":
        given, wanted = torch.cat([text.target.embedding[following], text.hidden[-1][:-1]], -1), text.hidden[-1][1:]
        return dataclasses.replace(eagle, tensors=tensors | {"fc.weight": _fitted(given, wanted)})
    given = torch.cat([text.hidden[layer] for layer in layers], -1)[:-2]
    known = sorted(set(text.tokens))
    ids = torch.tensor(known + [token for token in range(V) if token not in known][: REDUCED - len(known)]).sort().values
    codes = functional.normalize(torch.randn(REDUCED, H, generator=torch.Generator().manual_seed(5)), dim=-1)
    own = torch.tensor([int((ids == token).nonzero()) for token in text.tokens[2:]])
    tensors |= {"d2t": ids - torch.arange(REDUCED), "t2d": torch.isin(torch.arange(V), ids), "norm.weight": torch.ones(H)}
    tensors |= {"fc.weight": _fitted(given, codes[own]), "lm_head.weight": codes}
    return dataclasses.replace(eagle, tensors=tensors, config=eagle.config | {"eagle_aux_hidden_state_layer_ids": list(layers)})


def _fitted(given: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """The matrix [M, N] that takes rows ``given`` [n, N] to ``wanted`` [n, M], by least squares; not by what rounding makes of rows."""
    return torch.linalg.lstsq(given.double(), wanted.double(), rcond=1e-8, driver="gelsd").solution.T.float()
