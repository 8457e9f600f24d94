"""What a measurement on this machine depends on, and how much memory this process has used."""

from __future__ import annotations

import functools
import hashlib
import platform
import sys
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


def peak_rss_bytes() -> int:
    """Most memory this process has had resident so far, 0 where the system does not tell."""
    try:
        # Not getrusage on Linux: its maximum is inherited from the process that started this one.
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
