"""Does an execution provider work here? A tiny graph, and the models of a bundle, run on it in a process of their own.

    python -m edgespec.runtime.providers.self_check RESULT PROVIDER [BUNDLE]     writes RESULT, JSON

A driver that hangs or crashes then takes nothing else along. Where no process can be started, as in an app, the check runs in this one.
"""

from __future__ import annotations

import base64
import collections
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgespec.bundle import open_bundle
from edgespec.errors import EdgespecError, RuntimeFailure
from edgespec.manifest import Manifest
from edgespec.runtime.models.model import Model
from edgespec.runtime.providers.assignment import assignment, describe
from edgespec.runtime.providers.placement import Placement, Placements
from edgespec.runtime.providers.profiles import open_model, with_profiles
from edgespec.runtime.providers.providers import DYNAMIC, choose
from edgespec.runtime.providers.session import CPU, make_session

LIMIT_S = 10.0
PENDING = "pending"
ROWS = 64  # of cache, for a model that is only tried
# softmax(a @ b) for a [1, 8, 16] and b [1, 16, 8], opset 17: small enough for any provider to be asked.
GRAPH = base64.b64decode(
    "CAgSADqMAQoRCgFhCgFiEgFjIgZNYXRNdWwKJQoBYxIBZCIHU29mdG1heCoUCgRheGlzGP///////////wGgAQISBWNoZWNrWhcKAWESEgoQCAESDAoCCAEKAggI"
    "CgIIEFoXCgFiEhIKEAgBEgwKAggBCgIIEAoCCAhiFwoBZBISChAIARIMCgIIAQoCCAgKAggIQgQKABAR"
)
TOLERANCE = 1e-2  # an NPU computes in 16 bits
MOST_OFF = 0.3  # of the spread of logits; activations in 8 bits, which only the CPU has, move a small model's by 0.1


@dataclasses.dataclass(frozen=True)
class ModelCheck:
    """One model of a bundle on one provider. ``ms`` is the time of a pass of one token, None where it does not run; ``note`` says
    which nodes are elsewhere, or why it does not run."""

    model: str
    profile: str
    ms: float | None
    note: str | None = None


@dataclasses.dataclass(frozen=True)
class SelfCheck:
    """One provider. ``ms`` is the time of the tiny graph, None where it does not work, and then ``error`` says why."""

    provider: str
    ms: float | None
    error: str | None = None
    models: tuple[ModelCheck, ...] = ()


def self_check(provider: str, bundle: Path | None = None, limit_s: float = LIMIT_S) -> SelfCheck:
    """Try ``provider``, at most for ``limit_s`` seconds."""
    if not sys.executable:
        return check(provider, bundle)
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        words = [sys.executable, "-m", __name__, str(result), provider, *([str(bundle)] if bundle else [])]
        ended = f"no answer within {limit_s:g} s"
        try:
            done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s, check=False)
            if done.returncode != 0:
                last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
                ended = f"its process ended with code {done.returncode}{': ' + last[0][:200] if last else ''}"
        except subprocess.TimeoutExpired:
            pass
        if not result.exists():
            return SelfCheck(provider, None, ended)
        data = json.loads(result.read_text(encoding="utf-8"))
        models = [ModelCheck(**model) for model in data["models"]]
        models = [dataclasses.replace(model, note=ended) if model.note == PENDING else model for model in models]
        return SelfCheck(data["provider"], data["ms"], data["error"], tuple(models))


def check(provider: str, bundle: Path | None = None, so_far: Callable[[SelfCheck], None] = lambda _: None) -> SelfCheck:
    """Try ``provider`` in this process; ``so_far`` is told after every step."""
    try:
        found = SelfCheck(provider, _tiny(provider))
    except EdgespecError as error:
        return SelfCheck(provider, None, str(error))
    if bundle is None:
        return found
    manifest, placements = open_bundle(bundle), Placements.of(provider)
    models = {name: ModelCheck(name, placements.of_model(name).profile, None, PENDING) for name in manifest.models}
    for name in models:
        so_far(dataclasses.replace(found, models=tuple(models.values())))
        models[name] = _model(bundle, manifest, name, placements.of_model(name))
    return dataclasses.replace(found, models=tuple(models.values()))


def _tiny(provider: str) -> float:
    """Milliseconds of the tiny graph, the fastest of a few runs.

    Raises:
        EdgespecError: it does not run there, or computes something else.
    """
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(1, 8, 16)).astype(np.float32), rng.normal(size=(1, 16, 8)).astype(np.float32)
    found = np.zeros((1, 8, 8), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "check.onnx"
        path.write_bytes(GRAPH)
        session = make_session(path, 1, [choose(provider)], strict=provider != "cpu")
        binding = session.io_binding()
        for name, array in (("a", a), ("b", b)):
            binding.bind_input(name, "cpu", 0, np.float32, list(array.shape), array.ctypes.data)
        binding.bind_output("d", "cpu", 0, np.float32, list(found.shape), found.ctypes.data)
        ms = min(_timed(session, binding) for _ in range(5))
        del session, binding
    scores = np.exp(a @ b - (a @ b).max(-1, keepdims=True))
    error = float(np.abs(found - scores / scores.sum(-1, keepdims=True)).max())
    if not error < TOLERANCE:
        raise RuntimeFailure(f"it computes something else: softmax(a b) is off by {error:.2g}")
    return ms


def _timed(session: Any, binding: Any) -> float:
    started = time.perf_counter()
    session.run_with_iobinding(binding)
    return (time.perf_counter() - started) * 1000


def _model(bundle: Path, manifest: Manifest, name: str, place: Placement) -> ModelCheck:
    def failed(note: str) -> ModelCheck:
        return ModelCheck(name, place.profile, None, note)

    try:
        spec = with_profiles(manifest, {other: place.profile if other == name else DYNAMIC for other in manifest.models}).models[name]
        if spec.reads:
            return failed("a draft head, which is not tried without its target")
        model = open_model(bundle, spec, place, capacity=min(ROWS, spec.capacity))
        logits, ms = _logits(model)
        if not np.isfinite(logits).all():
            return failed("its logits are not numbers")
        if place.providers[0].name != CPU.name:
            usual = open_model(bundle, manifest.models[name], Placement((CPU,), place.threads), capacity=min(ROWS, spec.capacity))
            wanted = _logits(usual)[0]
            off = float(np.sqrt(np.square(logits - wanted).mean()) / (wanted.std() or 1.0))
            if off > MOST_OFF:
                return failed(f"it computes something else: its logits are off from the CPU's by {off:.2g} of their spread")
    except EdgespecError as error:
        return failed(str(error))
    return ModelCheck(name, place.profile, ms, _elsewhere(model, place.providers[0].name))


def _logits(model: Model) -> tuple[np.ndarray, float]:
    """Logits of a few tokens one by one, behind some that come in one pass, and milliseconds of the fastest of them."""
    model.run([0, 1, 2], [2])
    found, times = [], []
    for token in (3, 4, 5):
        started = time.perf_counter()
        found.append(model.run([token], [0]).copy())
        times.append((time.perf_counter() - started) * 1000)
    return np.concatenate(found), min(times)


def _elsewhere(model: Model, provider: str) -> str | None:
    """Nodes of all of a model's graphs that another provider runs."""
    if provider == CPU.name:
        return None
    total: dict[str, collections.Counter[str]] = {}
    for session in model.sessions:
        for name, operators in (assignment(session) or {}).items():
            if name != provider:
                total.setdefault(name, collections.Counter()).update(operators)
    return describe(total) if total else None


def main(words: Sequence[str]) -> None:
    """The process that :func:`self_check` starts."""
    result, provider, *bundle = words

    def write(found: SelfCheck) -> None:
        unfinished = Path(f"{result}.part")
        unfinished.write_text(json.dumps(dataclasses.asdict(found)), encoding="utf-8")
        unfinished.replace(result)

    write(check(provider, Path(bundle[0]) if bundle else None, write))


if __name__ == "__main__":
    main(sys.argv[1:])
