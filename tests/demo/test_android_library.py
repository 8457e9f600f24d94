"""ONNX Runtime's own Android library, run on Linux behind a stand-in for Android's libc: its kernels and its C API, nothing else.

EDGESPEC_ANDROID_LIBRARY names libonnxruntime.so of the Android archive for this machine's architecture (jni/x86_64); EDGESPEC_TEST_BUNDLE
a bundle to try besides the tiny one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgespec.runtime import load
from edgespec.runtime.ort import LIBRARY_VARIABLE
from tests.demo.test_android_project import PROJECT
from tests.helpers.bundles import make_attention_bundle

OPTIONS = ({"drafter": "none"}, {"drafter": "draft", "draft_length": 3})
CODE = """
import json, os, sys, edgespec
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
    if not library or shutil.which("cc") is None or shutil.which("readelf") is None:
        pytest.skip("needs EDGESPEC_ANDROID_LIBRARY, a C compiler and readelf")
    stand_in = PROJECT / "checks" / "bionic_stand_in.py"
    subprocess.run([sys.executable, str(stand_in), library, str(tmp_path / "bionic")], check=True)
    bundles = [make_attention_bundle(tmp_path / "tiny", draft_noise=0.1, chat=True)]
    if os.environ.get("EDGESPEC_TEST_BUNDLE"):
        bundles.append(Path(os.environ["EDGESPEC_TEST_BUNDLE"]))
    environment = {**os.environ, LIBRARY_VARIABLE: library, "LD_LIBRARY_PATH": str(tmp_path / "bionic")}
    for bundle in bundles:
        command = [sys.executable, "-c", CODE, str(bundle), "Count to ten.", json.dumps(OPTIONS)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert "NnapiExecutionProvider" in found["providers"], "this is Android's build"
        plain, speculative = found["texts"]
        assert plain == speculative
        if bundle == bundles[0]:  # of a quantised one the near-ties may fall the other way on another build
            with load(bundle, threads=1) as engine:
                assert plain == list(engine.generate("Count to ten.", max_new_tokens=24, drafter="none").token_ids)
