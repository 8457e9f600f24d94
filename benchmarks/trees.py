"""What it costs to draft with trees, beside the passes: ``python -m benchmarks.trees BUNDLE``.

In milliseconds, 10th percentile: growing a tree of 16 nodes, laying it out, its mask and positions, and the walk that accepts; what n-gram
look-ups cost that hit and that miss; and a pass of the target with a tree against one with a chain of the same width.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.figures import p10
from edgespec.bundle import open_bundle
from edgespec.runtime.accept import accept
from edgespec.runtime.cores import default_threads
from edgespec.runtime.drafters.growth import Growth
from edgespec.runtime.drafters.lookahead import Lookahead, Window
from edgespec.runtime.drafters.ngram import NGram
from edgespec.runtime.models.model import Model
from edgespec.runtime.providers.session import DEFAULT_PROVIDERS
from edgespec.runtime.sampling.sampling import greedy
from edgespec.runtime.tuning.machine import machine_name
from edgespec.tree import DraftTree

CANDIDATES = (0.6, 0.2, 0.1)
WIDTHS = (4, 8, 16)


def grown(count: int) -> DraftTree:
    """A tree of ``count`` nodes, of three candidates behind each node on its way."""
    growth = Growth(branches=True)
    for node in range(-1, count):
        for rank, chance in enumerate(CANDIDATES):
            growth.add(node, 3 * node + rank + 10, chance)
    return growth.tree(growth.best(count))


def parents_of(tree: DraftTree) -> tuple[int, ...]:
    return (-1, *(parent + 1 for parent in tree.parents))


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path, exists=True))
@click.option("--past", default=512, show_default=True, help="Valid cache rows before the pass.")
@click.option("--rounds", default=200, show_default=True)
@click.option("--threads", default=default_threads(), show_default=True)
def main(bundle: Path, past: int, rounds: int, threads: int) -> None:
    import onnxruntime

    spec = open_bundle(bundle).target
    model = Model(bundle / spec.graph, spec, capacity=min(spec.capacity, 2048), threads=threads, providers=DEFAULT_PROVIDERS)
    past = min(past, model.capacity - 2 * max(WIDTHS))
    tokens = np.random.default_rng(0).integers(0, spec.vocab_size, past).tolist()
    while model.length < past:
        model.run(tokens[model.length : min(past, model.length + model.chunk)], [0])
    click.echo(f"{machine_name()}, ONNX Runtime {onnxruntime.__version__}, {threads} threads, {past} cache rows, {rounds} rounds")
    tree = grown(16)
    logits = np.random.default_rng(1).normal(size=(17, spec.vocab_size)).astype(np.float32)
    lookahead = Lookahead(Window(4, 3, 2))
    repeating, new = tokens[:200] * 2, list(range(past))
    knows_it, knows_nothing = NGram(), NGram()
    for name, action in {
        "grow a tree of 16 nodes and lay it out": lambda: grown(16),
        "its mask and positions, at the width of the pass": lambda: mask(model, tree),
        "accept: walk 17 rows": lambda: accept(tree, logits, greedy),
        "lookahead: a tree of 12 nodes": lambda: lookahead.propose(tokens, 12),
        "n-gram: a hit of 8 tokens": lambda: knows_it.propose(repeating, 8),
        "n-gram: a miss": lambda: knows_nothing.propose(new, 8),
    }.items():
        click.echo(f"{name:52}{p10(times(action, rounds)) * 1e3:8.3f} ms")
    for width in (width for width in WIDTHS if width <= spec.max_width):
        branching = grown(width - 1)
        chain, branched = DraftTree.chain(branching.tokens), []
        plain = []
        for _ in range(max(rounds // 10, 5)):  # in turns
            plain.append(pass_time(model, past, chain))
            branched.append(pass_time(model, past, branching))
        click.echo(f"a pass of {width}: as a chain {p10(plain) * 1e3:.2f} ms, as a tree {p10(branched) * 1e3:.2f} ms")


def times(action: Callable[[], Any], rounds: int) -> list[float]:
    found = []
    for _ in range(rounds):
        started = time.perf_counter()
        action()
        found.append(time.perf_counter() - started)
    return found


def mask(model: Model, tree: DraftTree) -> None:
    """What a pass does for a tree that it does not do for a chain."""
    width = 1 + len(tree)
    hidden = model.tree(parents_of(tree), width, None)
    model._bias(None, width, model.length + width, hidden)


def pass_time(model: Model, past: int, tree: DraftTree) -> float:
    model.keep(past)
    started = time.perf_counter()
    model.run((5, *tree.tokens), range(1 + len(tree)), None if tree.is_chain else parents_of(tree))
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
