"""Time and memory around the passes: ``python -m benchmarks.footprint GGUF``.

Each row is a command in a process of its own: importing the runtime, exporting, and running the exported bundle.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from benchmarks.figures import median
from edgespec.bench.prompts import read_prompts
from edgespec.runtime.tuning.machine import machine_name

IMPORT = "import time; s = time.perf_counter(); import edgespec.runtime; print(time.perf_counter() - s)"
LOADED = "import sys, edgespec.runtime; print([name for name in ('torch', 'transformers', 'onnx', 'onnxruntime') if name in sys.modules])"
EXPORT = """
import json, sys
from pathlib import Path
from edgespec.export import ExportConfig, export_bundle
report = export_bundle(ExportConfig(sys.argv[1], Path(sys.argv[2]), weights=sys.argv[3], draft="layers:4", quiet=True))
print(json.dumps({"seconds": report.seconds, "peak": report.peak_rss_bytes, "disk": sum(report.sizes.values())}))
"""


@click.command()
@click.argument("gguf", type=click.Path(path_type=Path, exists=True))
@click.option("--weights", default="int8", show_default=True)
def main(gguf: Path, weights: str) -> None:
    click.echo(machine_name())
    click.echo(f"import edgespec.runtime: {median([float(python('-c', IMPORT)) for _ in range(5)]):.3f} s; loads {python('-c', LOADED)}")
    with tempfile.TemporaryDirectory() as scratch:
        bundle = Path(scratch) / "bundle"
        export = json.loads(python("-c", EXPORT, str(gguf), str(bundle), weights).splitlines()[-1])
        click.echo(f"export {weights} with draft layers:4: {export['seconds']:.0f} s, peak {export['peak'] / 1e6:.0f} MB")
        click.echo(f"bundle on disk: {export['disk'] / 1e6:.0f} MB")
        run(bundle, "none")  # the self-test and the cost curve are measured once and kept
        for drafter in ("none", "auto"):
            answers = [run(bundle, drafter, question.text) for question in read_prompts()]
            peak = max(answer["peak_rss_bytes"] for answer in answers)
            share = median([answer["overhead_share"] for answer in answers])
            click.echo(f"run --drafter {drafter}: peak {peak / 1e6:.0f} MB, {share:.1%} of decode time outside ONNX Runtime")


def run(bundle: Path, drafter: str, prompt: str = "Hello") -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(python("-m", "edgespec", "run", str(bundle), prompt, "--drafter", drafter, "--json"))
    return answer


def python(*arguments: str) -> str:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
