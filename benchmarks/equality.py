"""Is greedy text with speculation the plain text, token for token? On a file of questions, with every drafter of a bundle.

    python benchmarks/equality.py BUNDLE QUESTIONS.jsonl [--limit 200] [--new-tokens 32] [--drafter NAME ...] [--output results.jsonl]

Questions are in Spec-Bench's format, one JSON object a line with ``question_id``, ``category`` and ``turns``; the first turn
is asked. With ``--exactness fast`` the table says how many texts near-ties change. A result is written after each question,
and a question that the output already has is not asked again, so a run can be interrupted. Exit code 1 if any text differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import edgespec
from edgespec.errors import CapacityError
from edgespec.runtime.verify import first_difference


def compare(
    engine: edgespec.runtime.Engine,
    question: dict[str, Any],
    new_tokens: int,
    exactness: str,
    drafters: list[str] | None,
) -> dict[str, Any]:
    """Plain text of one question, and each drafter's: where it first differs (null if nowhere), accepted drafts, passes."""
    prompt = [{"role": "user", "content": question["turns"][0]}]
    plain = engine.generate(prompt, drafter="none", max_new_tokens=new_tokens, exactness=exactness)
    found: dict[str, Any] = {"question_id": question["question_id"], "category": question.get("category"), "grade": plain.stats.exactness}
    found |= {"prompt_tokens": plain.stats.prompt_tokens, "new_tokens": plain.stats.new_tokens, "drafters": {}}
    for drafter in drafters or engine.drafters:
        if drafter == "none":
            continue
        for length in ("auto",) if drafter == "auto" else ("auto", 3):
            result = engine.generate(prompt, drafter=drafter, draft_length=length, max_new_tokens=new_tokens, exactness=exactness)
            found["drafters"][f"{drafter}, {length}"] = {
                "first_difference": first_difference(plain.token_ids, result.token_ids),
                "accepted": result.stats.accepted,
                "drafted": result.stats.drafted,
                "passes": result.stats.target_passes,
            }
    return found


def report(results: list[dict[str, Any]]) -> bool:
    """Print a table and say whether every text was equal."""
    names = sorted({name for result in results for name in result["drafters"]})
    asked = [result for result in results if result["drafters"]]
    print(
        f"{len(asked)} questions, {len(results) - len(asked)} too long for the bundle, grades {sorted({item['grade'] for item in asked})}"
    )
    print(f"{'drafter, draft length':24s} {'equal':>10s} {'accepted':>9s} {'drafted':>8s} {'tokens/pass':>12s}")
    equal = True
    for name in names:
        cells = [result["drafters"][name] for result in asked]
        same = sum(cell["first_difference"] is None for cell in cells)
        equal &= same == len(cells)
        passes = sum(cell["passes"] for cell in cells)
        tokens = sum(result["new_tokens"] - 1 for result in asked)
        accepted, drafted = sum(cell["accepted"] for cell in cells), sum(cell["drafted"] for cell in cells)
        print(f"{name:24s} {same:4d} / {len(cells):3d} {accepted:9d} {drafted:8d} {tokens / max(passes, 1):12.2f}")
    return equal


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--exactness", choices=["exact", "fast"], default="exact")
    parser.add_argument("--drafter", action="append", help="only this one; may be given several times")
    parser.add_argument("--output", type=Path, help="results so far are read from here and new ones added")
    arguments = parser.parse_args()
    questions = [json.loads(line) for line in arguments.questions.read_text(encoding="utf-8").splitlines() if line.strip()]
    results: list[dict[str, Any]] = []
    if arguments.output and arguments.output.exists():
        results = [json.loads(line) for line in arguments.output.read_text(encoding="utf-8").splitlines()]
    done = {result["question_id"] for result in results}
    started = time.perf_counter()
    with edgespec.load(arguments.bundle, threads=arguments.threads) as engine:
        for question in questions[: arguments.limit]:
            if question["question_id"] in done:
                continue
            try:
                results.append(compare(engine, question, arguments.new_tokens, arguments.exactness, arguments.drafter))
            except CapacityError:
                results.append({"question_id": question["question_id"], "grade": "", "new_tokens": 0, "drafters": {}})
            if arguments.output:
                with arguments.output.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(results[-1]) + "\n")
            if len(results) % 20 == 0:
                print(f"{len(results)} questions, {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    return 0 if report(results) else 1


if __name__ == "__main__":
    sys.exit(main())
