"""``--weights mixed``: bits and block size per tensor, more where an error does most harm.

Each group of matrices costs a number of bytes and a KL (:mod:`.sensitivity`) under every scheme. From the smallest forms on, the upgrade
that saves most KL per byte is bought, until the KL is small enough or the bytes are spent. Schemes that cost more than another and do
no better are never bought, so one list of candidates serves all shapes: rows that a block does not fill are padded, and pay for it.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import re
from collections.abc import Iterable, Sequence

from edgespec.errors import UsageError
from edgespec.export.quantise.sensitivity import Sensitivity
from edgespec.export.recipe import Plan, Scheme

ALLOWANCE = 1.10  # bytes over the smallest forms, unless the user says how many, or how near
FINEST = 32


def bytes_of(scheme: Scheme, shape: tuple[int, int]) -> int:
    """Codes, float scales and packed zero points of a matrix ``[N, K]``."""
    rows, columns = shape
    blocks = math.ceil(columns / scheme.block)
    return rows * (blocks * scheme.block * scheme.bits // 8 + 4 * blocks + math.ceil(blocks * scheme.bits / 8))


def candidates(block: int) -> tuple[Scheme, ...]:
    """Blocks of at most ``block`` weights."""
    blocks = [size for size in (256, 128, 64, 32, 16) if FINEST <= size <= block] or [block]
    return tuple(Scheme(bits, size) for bits in (4, 8) for size in blocks)


@dataclasses.dataclass(frozen=True)
class Allotment:
    """A scheme for each group of ``found``, and what they cost together: bytes, and an estimate of the KL in nats."""

    found: tuple[Sensitivity, ...]
    schemes: tuple[Scheme, ...]

    @property
    def size(self) -> int:
        return sum(_bytes(group, scheme) for group, scheme in zip(self.found, self.schemes, strict=True))

    @property
    def harm(self) -> float:
        return sum(group.harm[scheme] for group, scheme in zip(self.found, self.schemes, strict=True))

    @property
    def plan(self) -> Plan:
        default = collections.Counter(self.schemes).most_common(1)[0][0]
        pairs = zip(self.found, self.schemes, strict=True)
        return Plan(default, tuple((name, scheme) for group, scheme in pairs for name in group.names if scheme != default))


def allot(found: Sequence[Sensitivity], size: int | None = None, harm: float | None = None) -> Allotment:
    """The forms with the least harm in at most ``size`` bytes, or the smallest ones that do at most ``harm``.

    With both, ``size`` holds and what it leaves is not spent beyond ``harm``; with neither, a tenth more than the smallest forms is spent.

    Raises:
        UsageError: not even the smallest forms fit.
    """
    schemes = [min(group.harm, key=lambda scheme: (_bytes(group, scheme), group.harm[scheme])) for group in found]
    smallest = Allotment(tuple(found), tuple(schemes)).size
    if size is not None and size < smallest:
        raise UsageError(f"--target-size: {size} bytes are too few; the smallest forms take {smallest}")
    left = math.inf if size is None else float(size - smallest)
    if size is None and harm is None:
        left = smallest * (ALLOWANCE - 1)
    excess = math.inf if harm is None else Allotment(tuple(found), tuple(schemes)).harm - harm
    while excess > 0:
        upgrade = max(_upgrades(found, schemes, left), default=None)
        if upgrade is None:
            break
        _, gain, cost, index, bits, block = upgrade
        schemes[index] = Scheme(bits, block)
        left, excess = left - cost, excess - gain
    return Allotment(tuple(found), tuple(schemes))


def _upgrades(found: Sequence[Sensitivity], schemes: Sequence[Scheme], left: float) -> Iterable[tuple[float, float, int, int, int, int]]:
    """Harm saved per byte, harm saved, bytes, and which group gets what, of everything that can be afforded and helps."""
    for index, (group, now) in enumerate(zip(found, schemes, strict=True)):
        for scheme in group.harm:
            gain, cost = group.harm[now] - group.harm[scheme], _bytes(group, scheme) - _bytes(group, now)
            if gain > 0 and 0 < cost <= left:
                yield gain / cost, gain, cost, index, scheme.bits, scheme.block


def _bytes(group: Sensitivity, scheme: Scheme) -> int:
    return sum(bytes_of(scheme, shape) for shape in group.shapes)


def describe(allotment: Allotment) -> str:
    """The table of what was chosen, one line for each kind of layer; the manifest has every tensor."""
    kinds: dict[str, list[tuple[Sensitivity, Scheme]]] = {}
    for group, scheme in zip(allotment.found, allotment.schemes, strict=True):
        kinds.setdefault(_kind(group.names), []).append((group, scheme))
    lines = [f"{'KL':>8}  {'MB':>6}  bits x block"]
    for kind, members in kinds.items():
        harm = sum(group.harm[scheme] for group, scheme in members)
        size = sum(_bytes(group, scheme) for group, scheme in members)
        counts = sorted(collections.Counter(scheme for _, scheme in members).items(), key=lambda item: (item[0].bits, -item[0].block))
        forms = ", ".join(f"{count} at {scheme.bits} x {scheme.block}" for scheme, count in counts)
        lines.append(f"{harm:8.4f}  {size / 1e6:6.1f}  {kind}: {forms}")
    lines.append(f"{allotment.harm:8.4f}  {allotment.size / 1e6:6.1f}  together, as estimated")
    return "\n".join(lines)


def _kind(names: tuple[str, ...]) -> str:
    """What the names have in common over all layers: "q_proj | k_proj | v_proj"."""
    return " | ".join(re.sub(r"^.*\.\d+\.|\.weight$", "", name) for name in names)
