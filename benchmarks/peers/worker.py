"""The worker's half of the protocol: a line of JSON in, a line of JSON out. It runs inside the peer's environment, so it needs
nothing but the standard library.

    {"ids": [...], "new_tokens": 64, "mode": "plain"} -> {"ids": [...], "prefill_s": 0.1, "decode_s": 0.4, "peak_rss_bytes": 1}

``prefill_s`` is the time to the first token, ``decode_s`` how long the tokens after it took.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from typing import Any

Answer = tuple[list[int], float, float]


def serve(engine: str, load_s: float, modes: dict[str, Callable[[list[int], int], Answer]]) -> None:
    """Answer requests until standard input ends. A mode is a function of prompt ids and a number of new tokens."""
    out = sys.stdout
    sys.stdout = sys.stderr  # whatever the engine prints
    print(json.dumps({"engine": engine, "load_s": load_s, "modes": list(modes)}), file=out, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        ids, prefill_s, decode_s = modes[request["mode"]](request["ids"], request["new_tokens"])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        answer: dict[str, Any] = {"ids": ids, "prefill_s": prefill_s, "decode_s": decode_s, "peak_rss_bytes": peak}
        print(json.dumps(answer), file=out, flush=True)
