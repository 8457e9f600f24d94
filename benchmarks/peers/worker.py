"""The worker's half of the protocol: a line of JSON in, a line of JSON out. It runs inside the peer's environment, so it needs
nothing but the standard library.

    {"ids": [...], "new_tokens": 64, "mode": "plain"} -> {"ids": [...], "prefill_s": 0.1, "decode_s": 0.4, "peak_rss_bytes": 1}

``prefill_s`` is the time to the first token, ``decode_s`` how long the tokens after it took; an engine may tell more. A mode that fails
answers ``{"error": ...}``.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from typing import Any

Answer = tuple[list[int], float, float] | tuple[list[int], float, float, dict[str, Any]]
"""Token ids, ``prefill_s``, ``decode_s``, and what else the engine tells."""

DRAFTED, NGRAM = 3, 3
"""Tokens that are drafted at a time, and the length of n-grams that are looked up, where an engine does not choose by itself."""


def serve(engine: str, load_s: float, modes: dict[str, Callable[[list[int], int], Answer]]) -> None:
    """Answer requests until standard input ends. A mode is a function of prompt ids and a number of new tokens."""
    out = sys.stdout
    sys.stdout = sys.stderr  # whatever the engine prints
    print(json.dumps({"engine": engine, "load_s": load_s, "modes": list(modes)}), file=out, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any]
        try:
            ids, prefill_s, decode_s, *more = modes[request["mode"]](request["ids"], request["new_tokens"])
        except Exception as error:  # whatever a peer raises is told, and the next request may be another mode's
            answer = {"error": f"{type(error).__name__}: {error}"}
        else:
            answer = {"ids": ids, "prefill_s": prefill_s, "decode_s": decode_s, "peak_rss_bytes": peak_rss_bytes()}
            answer.update(*more)
        print(json.dumps(answer), file=out, flush=True)


def peak_rss_bytes() -> int:
    """Most memory that this process has had resident so far."""
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))
    except OSError:  # not Linux, where getrusage begins with the maximum of the process that started this one
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
