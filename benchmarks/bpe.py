"""The tokenizer in plain Python: time and memory of loading one, and speed: ``python -m benchmarks.bpe TOKENIZER_JSON``.

``--ids 151000`` first grows the vocabulary to that size with merges of tokens that are there, as large as those of Qwen or Llama-3.
The text is this repository's documents. Every figure is from a process of its own.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import click

MEASURED = """
import json, sys, time
from pathlib import Path
from edgespec.runtime.memory.measure import peak_rss_bytes
from edgespec.runtime.text.bpe import BpeTokenizer
before, started = peak_rss_bytes(), time.perf_counter()
tokenizer = BpeTokenizer.open(Path(sys.argv[1]))
loaded, peak = time.perf_counter() - started, peak_rss_bytes() - before
text = Path(sys.argv[2]).read_text(encoding="utf-8")
cold = time.perf_counter()
count = len(tokenizer.encode(text))
warm = time.perf_counter()
ids = tokenizer.encode(text)
done = time.perf_counter()
tokenizer.decode(ids)
print(json.dumps({"load_s": loaded, "peak_mb": peak / 1e6, "tokens": count, "first_tokens_per_s": count / (warm - cold),
                  "second_tokens_per_s": count / (done - warm), "decoded_tokens_per_s": count / (time.perf_counter() - done)}))
"""


@click.command()
@click.argument("tokenizer", type=click.Path(path_type=Path, exists=True))
@click.option("--ids", type=int, help="Grow the vocabulary to so many ids first.")
def main(tokenizer: Path, ids: int | None) -> None:
    root = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as folder:
        text, path = Path(folder) / "text", tokenizer
        files = sorted([*(root / "docs").glob("*.md"), *(root / "runtime").rglob("*.py")])
        text.write_text("".join(file.read_text(encoding="utf-8") for file in files), encoding="utf-8")
        if ids:
            path = Path(folder) / "tokenizer.json"
            path.write_text(json.dumps(grown(json.loads(tokenizer.read_text(encoding="utf-8")), ids), ensure_ascii=False), encoding="utf-8")
        done = subprocess.run([sys.executable, "-c", MEASURED, path, text], check=True, capture_output=True, text=True)
    for name, value in json.loads(done.stdout).items():
        click.echo(f"{name:24} {value:14,.2f}")


def grown(config: dict[str, object], ids: int) -> dict[str, object]:
    """``config`` with merges of random pairs of its tokens until there are ``ids`` of them."""
    model = config["model"]
    assert isinstance(model, dict)
    vocab, merges, rng = model["vocab"], model["merges"], random.Random(0)
    tokens, free = list(vocab), 1 + max(vocab.values())
    while len(vocab) < ids:
        left, right = rng.choice(tokens), rng.choice(tokens)
        if len(left) + len(right) <= 16 and left + right not in vocab:
            vocab[left + right] = free
            merges.append([left, right])
            free += 1
    return config


if __name__ == "__main__":
    main()
