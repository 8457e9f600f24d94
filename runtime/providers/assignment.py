"""Which provider runs which nodes of a graph: what a provider does not take runs on the CPU, and that is never silent."""

from __future__ import annotations

import collections
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgespec.errors import RuntimeFailure

log = logging.getLogger(__name__)

RECORD_ASSIGNMENT = "session.record_ep_graph_assignment_info"
Assignment = dict[str, dict[str, int]]
"""Number of nodes by provider and operator."""


def assignment(session: Any) -> Assignment | None:
    """What each provider has of a session's graph, None where ONNX Runtime does not tell (before 1.24, or another backend)."""
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return None
    found: dict[str, collections.Counter[str]] = {}
    for part in session.get_provider_graph_assignment_info():
        found.setdefault(part.ep_name, collections.Counter()).update(node.op_type for node in part.get_nodes())
    return {name: dict(operators.most_common()) for name, operators in found.items()}


def check_assignment(graph: Path, session: Any, wanted: Sequence[str], strict: bool) -> None:
    """Say which nodes are elsewhere than on the providers that were ``wanted``, as a warning or, if strict, as an error.

    Raises:
        RuntimeFailure: a provider was not started, which ONNX Runtime itself only logs; or nodes are elsewhere and that was forbidden.
    """
    missing = [name for name in wanted if name not in session.get_providers()]
    if missing:
        raise RuntimeFailure(f"{graph}: {missing[0]} did not start: its driver or a library of it is missing; `edgespec doctor` says more")
    found = assignment(session)
    if found is None:
        message = f"{graph}: this ONNX Runtime does not say which nodes run on the CPU instead of {wanted[0]}; 1.24 and later do"
    else:
        elsewhere = {name: operators for name, operators in found.items() if name != wanted[0]}
        if not elsewhere:
            return
        total = sum(sum(operators.values()) for operators in found.values())
        message = f"{graph}: {describe(elsewhere)} of {total} nodes, because {wanted[0]} does not take them"
        if elsewhere.keys() <= set(wanted):  # named as a second choice
            log.info("%s", message)
            return
    if strict:
        raise RuntimeFailure(f"{message}; without strict providers it would run so")
    log.warning("%s", message)


def describe(found: Mapping[str, Mapping[str, int]], most: int = 6) -> str:
    """``CPUExecutionProvider runs 30 (GroupQueryAttention 30)``: nodes by provider, with the most frequent operators."""
    parts = []
    for name, operators in found.items():
        names = [f"{operator} {count}" for operator, count in list(operators.items())[:most]]
        more = ["..."] if len(operators) > most else []
        parts.append(f"{name} runs {sum(operators.values())} ({', '.join([*names, *more])})")
    return " and ".join(parts)
