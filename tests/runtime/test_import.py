"""What importing and using the runtime loads."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

RUNTIME = Path(__file__).parents[2] / "runtime"
HEAVY = {"torch", "transformers", "onnx", "optimum", "edgespec.export", "click", "llguidance"}


def run(code: str, *arguments: str) -> dict[str, object]:
    out = subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True, text=True, cwd=RUNTIME.parent)
    return json.loads(out.stdout.splitlines()[-1])


def test_import_is_light_and_quick() -> None:
    code = (
        # Time of the processor, not of the clock: other processes on a shared machine are no fault of an import.
        "import json, sys, time; start = time.process_time(); import numpy; numpy_s = time.process_time() - start; "
        "import edgespec.runtime; "
        "print(json.dumps({'s': time.process_time() - start, 'numpy': numpy_s, 'modules': list(sys.modules)}))"
    )
    runs = [run(code) for _ in range(3)]
    modules = set(runs[0]["modules"])  # type: ignore[call-overload]
    assert not modules & (HEAVY | {"onnxruntime", "tokenizers", "jinja2"})
    # 0.3 s, or what that is on a slower machine: numpy alone takes 0.07 to 0.08 s where it was set.
    quickest = min(runs, key=lambda found: float(str(found["s"])))
    assert float(str(quickest["s"])) <= max(0.3, 4 * float(str(quickest["numpy"])))


def test_generating_loads_nothing_heavy_either(attention_bundle: Path) -> None:
    code = (
        "import json, os, sys; import edgespec; engine = edgespec.load(sys.argv[1]); engine.generate('hi', max_new_tokens=5); "
        "print(json.dumps({'modules': list(sys.modules), 'telemetry': os.environ.get('ORT_DISABLE_TELEMETRY')}))"
    )
    found = run(code, str(attention_bundle))
    assert not set(found["modules"]) & HEAVY  # type: ignore[call-overload]
    assert found["telemetry"] == "1"


def test_sources_import_only_what_the_runtime_may_use() -> None:
    # llguidance is an extra, imported when structured output is asked for.
    allowed = {"numpy", "onnxruntime", "tokenizers", "jinja2", "llguidance", "edgespec"} | sys.stdlib_module_names
    files = sorted(RUNTIME.rglob("*.py"))
    assert len(files) > 20
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.split(".")[0] in allowed, f"{file}: {name}"
                assert not name.startswith(("edgespec.export", "edgespec.cli")), f"{file}: {name}"
