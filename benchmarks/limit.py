"""How far from what the machine allows? ``python -m benchmarks.limit BUNDLE [--threads 2]``.

Every token reads all weights once, so decoding one by one cannot be faster than memory bandwidth over the bytes of the
weights; a pass of many rows cannot be faster than the arithmetic of its products. Both limits are measured here: bandwidth
by summing an array that no cache holds, with every thread on its own part, and arithmetic by one large product of the
kernel that the graphs use (MatMulNBits with 8-bit activations).
"""

from __future__ import annotations

import concurrent.futures
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

import edgespec
from benchmarks.figures import p10
from edgespec.bench.prompts import OWN, read_prompts
from edgespec.bundle import open_bundle
from edgespec.runtime.cores import default_threads
from edgespec.runtime.memory.weights import read_weights
from edgespec.runtime.tuning.machine import machine_name

ARRAY = 512 * 2**20  # bytes, beyond any cache
ROWS, DEPTH, COLUMNS, BLOCK = 256, 2048, 4096, 32
REPEATS = 15


def bandwidth(threads: int) -> float:
    """Bytes per second that ``threads`` threads read from memory together."""
    parts = np.array_split(np.ones(ARRAY // 8, np.float64), threads)
    times = []
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:  # numpy's sums do not hold the interpreter's lock
        for _ in range(REPEATS):
            started = time.perf_counter()
            list(pool.map(np.sum, parts))
            times.append(time.perf_counter() - started)
    return ARRAY / p10(times)


def arithmetic(threads: int) -> float:
    """Multiply-adds per second of MatMulNBits on int8 activations and 8-bit weights."""
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    weights = rng.integers(0, 255, (COLUMNS, DEPTH // BLOCK, BLOCK), np.uint8)
    scales = rng.random((COLUMNS, DEPTH // BLOCK), np.float32)
    node = helper.make_node(
        "MatMulNBits",
        ["x", "weights", "scales"],
        ["y"],
        domain="com.microsoft",
        K=DEPTH,
        N=COLUMNS,
        bits=8,
        block_size=BLOCK,
        accuracy_level=4,
    )
    ends: list[Any] = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [ROWS, DEPTH]), ("y", None))]
    constants = [numpy_helper.from_array(weights, "weights"), numpy_helper.from_array(scales, "scales")]
    graph = helper.make_graph([node], "product", ends[:1], ends[1:], constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    x = rng.normal(size=(ROWS, DEPTH)).astype(np.float32)
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        session.run(None, {"x": x})
        times.append(time.perf_counter() - started)
    return ROWS * DEPTH * COLUMNS / p10(times)


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path, exists=True))
@click.option("--threads", default=default_threads(), show_default=True)
@click.option("--new-tokens", default=64, show_default=True)
@click.option("--rounds", default=3, show_default=True)
def main(bundle: Path, threads: int, new_tokens: int, rounds: int) -> None:
    """Share of the machine's limits that decoding reaches, plain and with drafts."""
    manifest = open_bundle(bundle)
    read = read_weights(bundle / manifest.target.graph)  # of the embedding a token reads one row
    weights = read.kept + read.packed
    speed, products = bandwidth(threads), arithmetic(threads)
    click.echo(f"{machine_name()}, {threads} threads")
    click.echo(f"memory {speed / 1e9:.1f} GB/s, 8-bit products {products / 1e9:.0f} G multiply-adds/s")
    limit = speed / weights
    click.echo(f"{bundle.name}: {weights / 1e6:.0f} MB of weights for each pass, so at most {limit:.0f} passes/s of one token")
    modes: dict[str, dict[str, Any]] = {"plain": {"drafter": "none", "exactness": "fast"}, "exact": {"drafter": "none"}, "auto": {}}
    rates: dict[str, list[float]] = {mode: [] for mode in modes}
    passes: dict[str, list[float]] = {mode: [] for mode in modes}
    with edgespec.load(bundle, threads=threads) as engine:
        for number in range(rounds + 1):
            for question in read_prompts(OWN, None if number else 1):
                for mode, options in modes.items():
                    stats = engine.generate(question.text, max_new_tokens=new_tokens, ignore_eos=True, **options).stats
                    if number:
                        rates[mode].append((stats.new_tokens - 1) / stats.decode_s)
                        passes[mode].append(stats.target_passes / stats.decode_s)
    for mode in modes:
        rate, made = float(np.median(rates[mode])), float(np.median(passes[mode]))
        click.echo(f"{mode:8}{rate:8.1f} tokens/s, {rate / limit:5.2f} of one token per read of the weights; {made:7.1f} passes/s")


if __name__ == "__main__":
    main()
