"""Medusa heads (Cai et al. 2024): several heads over one hidden state, of which head i foretells the token i + 2 places on.

The public layout: ``{head}.{layer}.linear.weight`` [H, H] and ``.bias`` [H] of residual blocks x + SiLU(linear(x)), then
``{head}.{layers}.weight`` [V, H]. How many heads and layers there are is read from the tensors: the configurations of
published heads say 2 where the file has 5.

The graph takes rows of hidden states and gives each head's best tokens; there is nothing to keep between passes.

    features [1, R, H] float -> tokens [1, R, heads, ranks] int64, the likeliest first
"""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch
from torch.nn import functional

from edgespec.errors import CheckpointError
from edgespec.export.config import ExportConfig
from edgespec.export.heads.base import Head, HeadCheckpoint, TargetShape, Workplace, head_method, head_scheme, need_shape
from edgespec.export.heads.files import open_files
from edgespec.export.heads.proof import Sample, require_same_tokens
from edgespec.export.passes import Pipeline
from edgespec.export.passes.base import MICROSOFT, constant, typed
from edgespec.export.passes.lower_weights import LowerWeights
from edgespec.export.passes.tap_features import LAST
from edgespec.export.passes.tidy import Tidy
from edgespec.export.recipe import Plan, Recipe, weight
from edgespec.export.trace import dialect
from edgespec.export.trace.exporting import OPSET
from edgespec.manifest import ModelSpec
from edgespec.runtime.cores import default_threads
from edgespec.runtime.models.row_heads import RowHeads
from edgespec.runtime.providers.session import DEFAULT_PROVIDERS

FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt", "model.safetensors.index.json", "model.safetensors")
PREFIX = "medusa_head."
KEY = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})\.(linear\.weight|linear\.bias|weight)")
RANKS = 10  # tokens of a head that a tree can use; later ones are next to never right


def open_medusa(source: str, target: TargetShape) -> MedusaHeads:
    """Heads in a folder or on the Hub.

    Raises:
        CheckpointError: not readable, not Medusa's layout, or made for another target.
    """
    origin, config, stored = open_files("--medusa", source, FILES)
    names: dict[str, str] = {}
    layers: dict[int, int] = {}
    # Some are published inside the model that they were trained with, which is not read from here.
    inside = any(key.startswith(PREFIX) for key in stored)
    for key in (key for key in stored if key.startswith(PREFIX) or not inside):
        match = KEY.fullmatch(key.removeprefix(PREFIX))
        if match is None:
            raise CheckpointError(f"{source}: has a tensor {key} that Medusa heads have no place for")
        head, layer, part = int(match[1]), int(match[2]), match[3]
        names[f"{head}.{layer}.{part}"] = key
        if part == "weight":
            layers[head] = layer
    count = len(layers)
    if not count or sorted(layers) != list(range(count)) or len(set(layers.values())) != 1:
        raise CheckpointError(f"{source}: its heads are not numbered from 0 with equal layers; the file is incomplete or not Medusa's")
    depth = layers[0]
    wide, size = target.hidden_size, target.vocab_size
    for head in range(count):
        shapes: dict[str, tuple[int, ...]] = {f"{head}.{depth}.weight": (size, wide)}
        for layer in range(depth):
            shapes |= {f"{head}.{layer}.linear.weight": (wide, wide), f"{head}.{layer}.linear.bias": (wide,)}
        for name, shape in shapes.items():
            need_shape(source, name, stored.shapes.get(names.get(name, "")), shape, f"a target of hidden size {wide} and {size} tokens")
    if len(names) != count * (1 + 2 * depth):
        raise CheckpointError(f"{source}: has layers behind a head's last one; the file is not Medusa's")
    return MedusaHeads(HeadCheckpoint(origin, config, stored, names), count, depth, target)


class MedusaHeads(Head):
    kind = "medusa"

    def __init__(self, checkpoint: HeadCheckpoint, count: int, depth: int, target: TargetShape) -> None:
        super().__init__(checkpoint, (LAST,))
        self.count = count
        self.depth = depth
        self.target = target
        self._known = target.vocab_size
        """Tokens that the tokenizer has."""

    def write(self, place: Workplace) -> ModelSpec:
        self._known = min(place.vocabulary, self.target.vocab_size)
        model = self._graph(self._known)
        plan = Plan(head_scheme(place.config))
        Pipeline(LowerWeights(plan), Tidy())(model)
        place.weights.fill(model.graph, self.checkpoint, method=head_method(place.config))
        place.weights.flush()
        ir.save(model, place.folder / "medusa.onnx")
        return self.spec(
            place,
            architecture="medusa",
            weights=(place.weights.path.name,),
            layers=(),
            vocab_size=self.target.vocab_size,
            hidden_size=self.target.hidden_size,
        )

    def _graph(self, vocabulary: int) -> ir.Model:
        """The heads in the dialect. Tokens that the tokenizer does not have are left out of the ranks."""
        build = _Builder(self.target.hidden_size)
        ranks = [build.ranked(self._logits(build, head), self.target.vocab_size, vocabulary) for head in range(self.count)]
        build.finish(ranks, min(RANKS, vocabulary))
        return ir.Model(build.graph, ir_version=10)

    def _logits(self, build: _Builder, head: int) -> ir.Value:
        wide, x = self.target.hidden_size, build.features
        for layer in range(self.depth):
            block = f"{head}.{layer}.linear"
            y = build.add(dialect.DOMAIN, "Linear", x, build.weight(f"{block}.weight", wide, wide), build.weight(f"{block}.bias", wide))
            x = build.add("", "Add", x, build.add("", "Mul", y, build.add("", "Sigmoid", y)))
        matrix = build.weight(f"{head}.{self.depth}.weight", self.target.vocab_size, wide)
        return build.add(dialect.DOMAIN, "Linear", x, matrix)

    def prove(self, folder: Path, spec: ModelSpec, samples: list[Sample], config: ExportConfig) -> ModelSpec:
        heads = RowHeads(folder / spec.graph, spec, threads=default_threads(), providers=DEFAULT_PROVIDERS)
        found = [heads.run(sample.features) for sample in samples]
        wanted = [self._best(sample.features) for sample in samples]
        require_same_tokens(self.kind, np.concatenate(found), np.concatenate(wanted), head_scheme(config))
        return dataclasses.replace(spec, accuracy=accuracy_of(samples, found))

    def _best(self, features: np.ndarray) -> np.ndarray:
        """The token [n, heads] that each head holds likeliest, in torch."""
        x = torch.from_numpy(np.ascontiguousarray(features))
        found = []
        for head in range(self.count):
            y = x
            for layer in range(self.depth):
                matrix, bias = (self.checkpoint.read_float(f"{head}.{layer}.linear.{part}") for part in ("weight", "bias"))
                y = y + functional.silu(functional.linear(y, matrix, bias))
            logits = functional.linear(y, self.checkpoint.read_float(f"{head}.{self.depth}.weight"))
            found.append(logits[:, : self._known].argmax(-1))
        return torch.stack(found, 1).numpy()


class _Builder:
    """Makes a graph over rows of features [1, R, F] node by node."""

    def __init__(self, wide: int) -> None:
        self.features = typed("features", ir.DataType.FLOAT, [1, "R", wide])
        opsets = {"": OPSET, MICROSOFT: 1, dialect.DOMAIN: 1}
        self.graph = ir.Graph([self.features], [], nodes=[], opset_imports=opsets, name="medusa")

    def add(self, domain: str, op: str, *inputs: ir.Value, outputs: int = 1, **attributes: int) -> ir.Value:
        """The last output of a new node."""
        node = ir.node(op, inputs, attributes, domain=domain, num_outputs=outputs)
        self.graph.append(node)
        return node.outputs[-1]

    def weight(self, name: str, *shape: int) -> ir.Value:
        return weight(self.graph, name, ir.DataType.FLOAT, shape, Recipe((name,)))

    def whole(self, value: int) -> ir.Value:
        return constant(self.graph, f"int_{value}", np.array([value], np.int64))

    def ranked(self, logits: ir.Value, size: int, vocabulary: int) -> ir.Value:
        """The best tokens [1, R, 1, ranks] of logits [1, R, V]."""
        if vocabulary < size:
            logits = self.add("", "Slice", logits, self.whole(0), self.whole(vocabulary), self.whole(2))
        best = self.add("", "TopK", logits, self.whole(min(RANKS, vocabulary)), outputs=2, axis=-1)
        return self.add("", "Unsqueeze", best, self.whole(2))

    def finish(self, ranks: list[ir.Value], count: int) -> None:
        output = self.add("", "Concat", *ranks, axis=2)
        output.name, output.type = "tokens", ir.TensorType(ir.DataType.INT64)
        output.shape = ir.Shape([1, "R", len(ranks), count])
        self.graph.outputs.append(output)


def accuracy_of(samples: list[Sample], ranked: list[np.ndarray]) -> tuple[tuple[float, ...], ...]:
    """How often each head's token of each rank was what the target wrote, for positions whose whole future it wrote.

    A rank that was never right in so small a sample may be right some day: half a case is spread over the ranks.
    """
    _, heads, ranks = ranked[0].shape
    table = []
    for head in range(heads):
        hits, cases = np.zeros(ranks), 0
        for sample, tokens in zip(samples, ranked, strict=True):
            ahead = head + 2
            rows = range(max(sample.written - 1, 0), len(sample.tokens) - ahead)
            for row in rows:
                hits += tokens[row, head] == sample.tokens[row + ahead]
            cases += len(rows)
        prior = 0.5 ** np.arange(2, ranks + 2)
        table.append(tuple(round(float(share), 4) for share in (hits + prior) / (cases + 1)))
        assert math.fsum(table[-1]) <= 1.001
    return tuple(table)
