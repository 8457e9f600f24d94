"""Sizes as people write them."""

from __future__ import annotations

import re

from edgespec.errors import UsageError

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


def parse_size(size: int | str) -> int:
    """Bytes of 300000000, "300MB" or "1.5 GiB".

    Raises:
        UsageError: no size, or none above nothing.
    """
    if isinstance(size, int) and not isinstance(size, bool):
        amount = float(size)
    else:
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMG]?I?)B?\s*", str(size).upper())
        if not match or match[2] not in UNITS:
            raise UsageError(f"memory budget {size!r}: expected bytes, or a number with a unit such as 300MB or 1.5GiB")
        amount = float(match[1]) * UNITS[match[2]]
    if amount <= 0:
        raise UsageError(f"memory budget {size!r}: expected more than nothing")
    return int(amount)
