"""The card of a draft: README.md with what it was made of, and the command that makes it again."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Any

from edgespec import __version__
from edgespec.export.distill.acceptance import Acceptance
from edgespec.export.distill.config import EXPORT_OPTIONS, DistillConfig
from edgespec.export.distill.corpus import REASONS
from edgespec.export.distill.judge import Verdict
from edgespec.export.distill.shards import Shard
from edgespec.export.distill.train import State
from edgespec.manifest import ModelSpec


def write_card(
    config: DistillConfig, target: ModelSpec, shards: Sequence[Shard], state: State, verdict: Verdict, facts: dict[str, Any]
) -> str:
    """The card's text.

    Args:
        config: what was asked for.
        target: that the draft is for.
        shards: what it was trained on.
        state: of the training.
        verdict: on held-out answers.
        facts: more lines of the recipe, by name.
    """
    source = target.source
    quantisation = target.quantisation
    stored = "float" if quantisation.bits == 32 else f"{quantisation.bits} bits in blocks of {quantisation.block_size}"
    header = {"licence": source.licence, "base": source.checkpoint}
    lines = ["---"]
    lines += [f"license: {json.dumps(header['licence'])}"] if source.licence else []
    lines += [f"base_model: {json.dumps(source.checkpoint)}", "tags: [speculative-decoding, edgespec]", "---", ""]
    lines += [
        f"# A draft for {source.checkpoint}",
        "",
        f"Made by `edgespec distill` {__version__} without any data but the target's own words. For speculative decoding: "
        "the text stays the target's.",
        "",
        f"    {command(config)}",
        f"    edgespec export {shlex.quote(config.target)} --{EXPORT_OPTIONS[config.kind]} {shlex.quote(str(config.output))} -o BUNDLE",
        "",
        "## Recipe",
        "",
        *_table(
            ("", ""),
            [
                ("kind", config.kind),
                ("target", f"{source.checkpoint} as exported, {stored}"),
                ("licence", f"{source.licence or 'unknown'}, inherited from the target, whose words it was trained on"),
                ("seed", str(config.seed)),
                *((name, str(value)) for name, value in facts.items()),
                ("best state", f"step {state.best_step} of {state.step}"),
            ],
        ),
        "",
        "## Corpus",
        "",
        *_table(("", ""), [(name, str(value)) for name, value in statistics(shards).items()]),
        "",
        "## Acceptance",
        "",
        f"On held-out answers of the target (greedy, chains of {config.steps} tokens, simulated): tokens per pass, and how often the "
        "draft's token of each place is right where those before it are.",
        "",
        *_table(
            ("questions", "tokens per pass", *(f"token {place}" for place in range(1, config.steps + 1))),
            [_row("all", verdict.all), *(_row(name, found) for name, found in sorted(verdict.categories.items()))],
        ),
        "",
        "## Training",
        "",
        *_table(
            ("step", "seconds", "loss", "tokens per pass"),
            [(f"{step:.0f}", f"{seconds:.0f}", f"{loss:.3f}", f"{found:.3f}") for step, seconds, loss, found in state.looks],
        ),
        "",
    ]
    return "\n".join(lines)


def command(config: DistillConfig) -> str:
    """The command that makes the draft again; paths as they were given."""
    words = ["edgespec", "distill", config.target, "-o", str(config.output)]
    fields = DistillConfig.__dataclass_fields__
    for name, field in fields.items():
        value = getattr(config, name)
        if name in ("target", "output", "resume", "quiet", "evaluate") or value == field.default or value is None:
            continue
        option = "--text" if name == "texts" else f"--{name.replace('_', '-')}"
        if name == "texts":
            words += [word for path in value for word in (option, str(path))]
        elif name == "taps":
            words += [option, ",".join(map(str, value))]
        else:
            words += [option] if value is True else [option, str(value)]
    return shlex.join(words)


def statistics(shards: Sequence[Shard]) -> dict[str, Any]:
    """What the corpus is like, summed over its shards."""
    tokens: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    for shard in shards:
        tokens.update(shard.statistics["tokens"])
        totals.update({name: shard.statistics[name] for name in ("texts", "greedy", "ended", "questions", *REASONS)})
    weights = [max(sum(shard.statistics["tokens"].values()), 1) for shard in shards]
    shares = [shard.statistics["distinct_4grams"] * weight for shard, weight in zip(shards, weights, strict=True)]
    return {
        "answer tokens": f"{sum(tokens.values()):,}",
        "texts": f"{totals['texts']:,}, of which {totals['greedy']:,} are the most likely ones and the others were drawn",
        "ended by the target": f"{totals['ended'] / max(totals['texts'], 1):.0%}",
        "questions of its own": f"{totals['questions']:,}",
        "distinct 4-grams": f"{sum(shares) / max(sum(weights), 1):.1%} within a shard",
        "left out or cut": ", ".join(f"{totals[reason]} {reason}" for reason in REASONS),
        "tokens by category": ", ".join(f"{name} {count:,}" for name, count in tokens.most_common()),
    }


def _row(name: str, found: Acceptance) -> tuple[str, ...]:
    return (name, f"{found.tokens_per_pass:.2f}", *(f"{share:.1%}" for share in found.by_position))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in (header, *rows)]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return [lines[0], f"|{'---|' * len(header)}", *lines[1:]]
