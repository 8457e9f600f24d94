"""What a measurement on this machine depends on."""

from __future__ import annotations

import functools
import hashlib
import platform
from pathlib import Path


@functools.lru_cache(maxsize=1)
def machine_name() -> str:
    """Processor model and a short hash of its instruction set, which decides about the kernels that run."""
    model, flags = platform.processor() or platform.machine(), ""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Hardware"):
                model = value.strip()
            elif name.strip() in ("flags", "Features") and not flags:
                flags = value.strip()
    except OSError:
        pass  # Not Linux: the names that platform gives have to do.
    digest = hashlib.sha256(f"{platform.machine()} {flags}".encode()).hexdigest()[:8]
    return f"{model} ({platform.machine()}, {digest})"
