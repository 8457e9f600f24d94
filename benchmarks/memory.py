"""Memory, as planned and as it was: ``python -m benchmarks.memory grid|budgets|engines BUNDLE ...``.

Each row is a process of its own, which fills its context with a text and writes a few tokens.

    grid     predicted and measured peak over bundles, contexts, draft lengths, and with packed weights in files and without
    budgets  random budgets between too small and plenty: what was given up, and whether budget and text were kept
    engines  memory after 10 and after 110 engines
"""

from __future__ import annotations

import gc
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

import edgespec
from benchmarks.control_group import limited_memory
from edgespec.bench.prompts import read_prompts
from edgespec.bundle import open_bundle
from edgespec.errors import CapacityError
from edgespec.runtime.memory.measure import usage
from edgespec.runtime.tuning.machine import machine_name

PLENTY = 10**12
SPARE = 40  # tokens of the context that are left to write into
BUNDLES = click.argument("bundles", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
BUNDLE = click.argument("bundle", type=click.Path(path_type=Path, exists=True))


@click.group()
def main() -> None:
    pass


@main.command()
@BUNDLES
@click.option("--contexts", default="512,2048", show_default=True)
@click.option("--lengths", default="0,3,15", show_default=True, help="Draft lengths; 0 is plain decoding.")
def grid(bundles: tuple[Path, ...], contexts: str, lengths: str) -> None:
    click.echo(machine_name())
    click.echo(
        f"{'bundle':16}{'context':>8}{'drafts':>7}  {'packs':8}{'predicted':>10}{'measured':>10}{'private':>16}{'evictable':>16}  off by"
    )
    for bundle in bundles:
        for context in map(int, contexts.split(",")):
            for length in map(int, lengths.split(",")):
                if not length and len(open_bundle(bundle).models) > 1:
                    continue  # the plan has a draft model's caches and embedding, which plain decoding does not fill
                for packs in (True, False):
                    found = run(bundle, budget=PLENTY, context=context, length=length, packs=packs)
                    row(bundle, context, length, packs, found)


def row(bundle: Path, context: int, length: int, packs: bool, found: dict[str, Any]) -> None:
    plan, measured = found["plan"], found["peak_rss_bytes"]
    off = plan["predicted_peak_bytes"] - measured
    parts = [f"{plan[name] / 1e6:.0f} / {found[name] / 1e6:.0f}" for name in ("private_bytes", "evictable_bytes")]
    fine = abs(off) <= max(8e6, 0.05 * measured)
    click.echo(
        f"{bundle.name[:15]:16}{context:8}{length:7}  {'files' if packs else 'private':8}{plan['predicted_peak_bytes'] / 1e6:10.0f}"
        f"{measured / 1e6:10.0f}{parts[0]:>16}{parts[1]:>16}  {off / 1e6:+.0f} MB ({off / measured:+.1%}){'' if fine else ' !'}"
    )


@main.command()
@BUNDLE
@click.option("--count", default=200, show_default=True)
@click.option("--context", default=1024, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--enforced", is_flag=True, help="Name no budget: each process is in a control group with that limit, and killed beyond it.")
def budgets(bundle: Path, count: int, context: int, seed: int, enforced: bool) -> None:
    """Exit code 1 if a budget was exceeded, a text differed, or a process died."""
    free = run(bundle, budget=PLENTY, context=context, length=3, packs=False)
    prompt = 256 - SPARE
    wanted = run(bundle, budget=PLENTY, context=context, length=0, packs=False, tokens=prompt)["ids"]
    least = smallest(bundle, context)
    span = free["plan"]["ceiling_bytes"] - least
    rng, wrong, kinds = random.Random(seed), 0, dict[str, int]()
    click.echo(f"{machine_name()}\n{bundle.name}: {least / 1e6:.0f} MB to {free['plan']['ceiling_bytes'] / 1e6:.0f} MB, context {context}")
    for number in range(count):
        budget = rng.randint(least - span // 10, least + span + span // 10)
        settings: dict[str, Any] = {"context": context, "length": 3, "packs": number % 2 == 0, "tokens": prompt}
        if enforced:
            with limited_memory(budget) as join:
                found = run(bundle, join, budget=None, **settings)
        else:
            found = run(bundle, budget=budget, **settings)
        if "error" in found:
            kind, good = "refused", budget < least + 3e6  # the heap of another process is not quite the same
        else:
            kind = "; ".join(re.sub(r" \d+.*?(?=;|$)", "", step) for step in found["plan"]["steps"]) or "nothing given up"
            good = found["peak_rss_bytes"] <= budget and found["ids"] == wanted
        kinds[kind] = kinds.get(kind, 0) + 1
        if not good:
            wrong += 1
            facts = {
                "budget": budget,
                "error": found.get("error"),
                "peak": found.get("peak_rss_bytes"),
                "same text": found.get("ids") == wanted,
            }
            click.echo(f"  wrong: {json.dumps({**facts, **settings, 'given up': found.get('plan', {}).get('steps')})}")
    for kind, number in sorted(kinds.items()):
        click.echo(f"{number:5}  {kind}")
    click.echo(f"{wrong} of {count} wrong")
    sys.exit(bool(wrong))


def smallest(bundle: Path, context: int) -> int:
    """The budget that a refusal names, in bytes. A process of its own is refused, since what this one holds is something else."""
    refusal = run(bundle, budget=1, context=context, length=3, packs=False).get("error", "")
    found = re.search(r"smallest that works is (\d+) MB", refusal)
    if found is None:
        raise SystemExit("a budget of one byte was not refused")
    return int(found[1]) * 10**6


@main.command()
@BUNDLE
@click.option("--count", default=100, show_default=True)
def engines(bundle: Path, count: int) -> None:
    """Exit code 1 if memory grew by more than 2 MB."""
    held = list(private_after(bundle, 10 + count))
    grown = held[-1] - held[9]
    click.echo(f"private memory after 10 engines {held[9] / 1e6:.1f} MB, after {10 + count} {held[-1] / 1e6:.1f} MB: {grown / 1e6:+.1f} MB")
    sys.exit(grown > 2e6)


def private_after(bundle: Path, count: int) -> Iterator[int]:
    for _ in range(count):
        with edgespec.load(bundle, threads=1, memory_budget=PLENTY) as engine:
            engine.generate("List three uses of a paperclip.", max_new_tokens=4)
        gc.collect()
        yield usage().private


def run(bundle: Path, first: Callable[[], None] | None = None, **settings: Any) -> dict[str, Any]:
    """What :func:`worker` prints in a process of its own, which calls ``first``."""
    command = [sys.executable, "-m", "benchmarks.memory", "worker", str(bundle), json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=first)
    if done.returncode:
        raise SystemExit(f"a process died with {done.returncode}: {settings}\n{done.stderr[-1000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@main.command(hidden=True)
@BUNDLE
@click.argument("settings")
def worker(bundle: Path, settings: str) -> None:
    """One measurement."""
    wanted = json.loads(settings)
    started = time.perf_counter()
    try:
        engine = edgespec.load(bundle, memory_budget=wanted["budget"], context=wanted["context"], pack_cache=wanted["packs"])
    except CapacityError as error:
        click.echo(json.dumps({"error": str(error)}))
        return
    loaded = time.perf_counter() - started
    text = " ".join(prompt.text for prompt in read_prompts()) + Path(__file__).read_text(encoding="utf-8")
    ids = engine.encode(text, chat=False)
    size = wanted.get("tokens") or engine.capacity - SPARE
    ids = (ids * (size // len(ids) + 1))[:size]
    length = {"drafter": "none"} if not wanted["length"] else {"drafter": "auto", "draft_length": wanted["length"]}
    result = engine.generate(ids, max_new_tokens=SPARE // 2, ignore_eos=True, **length)
    plan = engine.plan.as_dict()
    click.echo(json.dumps({"plan": plan, "ids": list(result.token_ids), "load_s": loaded, **result.stats.as_dict()}))


if __name__ == "__main__":
    main()
