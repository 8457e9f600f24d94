"""ONNX Runtime's own Android library, run on Linux behind a stand-in for Android's libc: its kernels and its C API, nothing else.

EDGESPEC_ANDROID_LIBRARY names libonnxruntime.so of the Android archive, EDGESPEC_ANDROID_PYTHON the command that starts a Python
(with numpy) of the library's architecture, if it is not this machine's: ``qemu-aarch64-static -L ROOT ROOT/usr/bin/python3`` with an
arm64 system in ROOT, which also needs a proc/cpuinfo of an arm64 machine, since the library reads that. EDGESPEC_TEST_BUNDLE is a
bundle to try besides the tiny one.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgespec.runtime import load
from edgespec.runtime.ort import LIBRARY_VARIABLE
from tests.demo.test_android_project import PROJECT
from tests.helpers.bundles import make_attention_bundle
from tests.runtime.text.test_chatml import TEMPLATES

OPTIONS = ({"drafter": "none"}, {"drafter": "auto", "draft_length": 3})
CODE = """
import json, os, sys
sys.path.insert(0, sys.argv[4])
import edgespec
from edgespec.runtime.ort import import_onnxruntime
engine = edgespec.load(sys.argv[1], threads=1)
texts = [engine.generate(sys.argv[2], max_new_tokens=24, **options).token_ids for options in json.loads(sys.argv[3])]
print(json.dumps({"texts": texts, "providers": import_onnxruntime().get_available_providers()}))
sys.stdout.flush()
os._exit(0)  # the stand-in does not get the library through the end of a process
"""


@pytest.mark.slow
def test_the_android_library_writes_the_same_text(tmp_path: Path) -> None:
    library = os.environ.get("EDGESPEC_ANDROID_LIBRARY")
    if not library or shutil.which("readelf") is None:
        pytest.skip("needs EDGESPEC_ANDROID_LIBRARY, a C compiler and readelf")
    python = shlex.split(os.environ.get("EDGESPEC_ANDROID_PYTHON") or sys.executable)
    stand_in, built = PROJECT / "checks" / "bionic_stand_in.py", tmp_path / "bionic"
    subprocess.run([sys.executable, str(stand_in), library, str(built)], check=True)
    bundles = [make_attention_bundle(tmp_path / "tiny", draft_noise=0.1, chat=TEMPLATES["plain"])]
    if os.environ.get("EDGESPEC_TEST_BUNDLE"):
        bundles.append(Path(os.environ["EDGESPEC_TEST_BUNDLE"]))
    # Only Python itself gets the stand-in, and not what starts it, which may be of another architecture.
    start = ["env", f"LD_LIBRARY_PATH={built}", f"LD_PRELOAD={built / 'libguard.so'}"]
    if "qemu" in python[0]:
        start, python = [], [python[0], *(word for one in start[1:] for word in ("-E", one)), *python[1:]]
    environment = {**os.environ, LIBRARY_VARIABLE: library}
    for bundle in bundles:
        command = [*start, *python, "-c", CODE, str(bundle), "Count to ten.", json.dumps(OPTIONS), str(PROJECT.parent)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert "NnapiExecutionProvider" in found["providers"], "this is Android's build"
        plain, speculative = found["texts"]
        assert plain == speculative
        if bundle == bundles[0]:  # of a quantised one the near-ties may fall the other way on another build
            with load(bundle, threads=1) as engine:
                assert plain == list(engine.generate("Count to ten.", max_new_tokens=24, drafter="none").token_ids)
