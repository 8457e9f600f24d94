"""edgespec as a worker: ``run_edgespec.py BUNDLE THREADS [MODES]``. MODES are options of ``generate`` by name, as JSON."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from edgespec_modes import ALONE
from worker import Answer, serve

start = time.perf_counter()
import edgespec  # noqa: E402

engine = edgespec.load(sys.argv[1], threads=int(sys.argv[2]))
loaded = time.perf_counter() - start


def generate(ids: list[int], new_tokens: int, **options: Any) -> Answer:
    # A prompt of one other token empties the cache: a prompt's rows would be reused from the run before.
    engine.generate([ids[0] + 1], max_new_tokens=1, drafter="none", exactness="fast")
    result = engine.generate(ids, max_new_tokens=new_tokens, **{"ignore_eos": True, **options})
    stats = result.stats.as_dict()
    told = {name: stats[name] for name in ("target_passes", "drafted_by_position", "accepted_by_position")}
    return list(result.token_ids), stats["time_to_first_token_s"], stats["decode_s"], told


modes = json.loads(sys.argv[3]) if len(sys.argv) > 3 else ALONE
serve("edgespec", loaded, {name: lambda ids, new_tokens, o=options: generate(ids, new_tokens, **o) for name, options in modes.items()})
