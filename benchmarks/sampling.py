"""What acceptance and sampling cost per round, without any model: random logits at a large vocabulary.

    python benchmarks/sampling.py [--vocabulary 151936] [--draft-length 4] [--repeat 300]

Two situations of a round with K drafted tokens. "accepted": every draft is accepted, so that K + 1 rows of the target are
shaped and drawn from. "with drafting": the K draws of the draft count too (not its passes). The goal is under 1 ms.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from edgespec.distribution import Distribution
from edgespec.runtime.accept import accept
from edgespec.runtime.options import GenerationOptions
from edgespec.runtime.sampling.processors import Text
from edgespec.runtime.sampling.sampling import make_sampler
from edgespec.tree import DraftTree

CASES: dict[str, dict[str, object]] = {
    "greedy": {},
    "top-p 0.9, top-k 50": {"do_sample": True, "top_p": 0.9, "top_k": 50},
    "the same, match": {"do_sample": True, "top_p": 0.9, "top_k": 50, "acceptance": "match"},
    "the same with penalties": {"do_sample": True, "top_p": 0.9, "top_k": 50, "repetition_penalty": 1.1, "presence_penalty": 0.5},
    "top-p 0.9": {"do_sample": True, "top_p": 0.9},
    "min-p 0.05": {"do_sample": True, "min_p": 0.05},
    "temperature only": {"do_sample": True, "temperature": 0.7},
}


def milliseconds(action: Callable[[], object], repeat: int) -> tuple[float, float]:
    """Median and 90th percentile."""
    times = []
    for _ in range(repeat):
        started = time.perf_counter()
        action()
        times.append((time.perf_counter() - started) * 1000)
    times.sort()
    return statistics.median(times), times[int(0.9 * repeat)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--draft-length", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=300)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    count: int = arguments.draft_length
    # Like a model's: a bulk, and a few likely tokens that stand out of it.
    logits = rng.normal(scale=2.0, size=(1 + count, arguments.vocabulary)).astype(np.float32)
    logits[:, rng.integers(0, arguments.vocabulary, 40)] += 12.0
    context = rng.integers(0, arguments.vocabulary, 600).tolist()
    print(f"V = {arguments.vocabulary}, K = {count}, {arguments.repeat} rounds, milliseconds per round: median (90th percentile)")
    for name, options in CASES.items():
        sampler = make_sampler(GenerationOptions(**options), prompt_length=500)  # type: ignore[arg-type]

        def draft() -> DraftTree:
            tokens: list[int] = []
            q: list[Distribution | None] = []
            for row in logits[:count]:
                token, drawn_from = sampler.draft(row, Text(context, tokens))  # noqa: B023  called in this iteration only
                tokens.append(token)
                q.append(drawn_from)
            return DraftTree.chain(tokens, q if q[0] is not None else ())

        tree = draft()
        alone = milliseconds(lambda: accept(tree, logits, sampler, context=context), arguments.repeat)  # noqa: B023
        both = milliseconds(lambda: accept(draft(), logits, sampler, context=context), arguments.repeat)  # noqa: B023
        print(f"{name:26s} accepted {alone[0]:6.3f} ({alone[1]:6.3f})   with drafting {both[0]:6.3f} ({both[1]:6.3f})")


if __name__ == "__main__":
    main()
