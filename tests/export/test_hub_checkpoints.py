"""Checkpoints by their name on the Hub, against a Hub on the loopback interface and huggingface_hub as it is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgespec.errors import UsageError
from edgespec.export import ExportConfig
from tests.export.conftest import export
from tests.helpers.hub import COMMIT, serve_hub

# In a process of its own, since huggingface_hub reads its settings when it is imported; one for all cases, since torch takes its time.
SCRIPT = """
import json, sys
from pathlib import Path
import huggingface_hub
from edgespec.errors import EdgespecError
from edgespec.export import ExportConfig, export_bundle
from edgespec.export.checkpoint import open_checkpoint

found = {}

def attempt(name, call):
    try:
        found[name] = call()
    except EdgespecError as error:
        found[name] = f"{type(error).__name__}: {error}"

def export(revision):
    config = ExportConfig(sys.argv[1], Path(sys.argv[2]), draft="me/tiny", draft_revision=revision, weights="fp32", max_width=8, quiet=True)
    source = export_bundle(config).manifest.models["draft"].source
    return [source.checkpoint, source.revision]

attempt("nothing", lambda: open_checkpoint("me/nothing"))
attempt("gated", lambda: open_checkpoint("me/gated"))
attempt("code", lambda: open_checkpoint("me/code"))
attempt("revision", lambda: open_checkpoint("me/tiny", revision="v9"))
attempt("draft revision", lambda: export("v9"))
attempt("draft", lambda: export(sys.argv[3]))
huggingface_hub.constants.HF_HUB_CACHE = sys.argv[4]
attempt("cache", lambda: open_checkpoint("me/other"))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What came of each case: a result, or an error's class and message."""
    folder = tmp_path_factory.mktemp("hub")
    with serve_hub(folder / "hub") as hub:
        for name in ("tiny", "gated", "code", "other"):
            shutil.copytree(llama, folder / "hub" / "me" / name)
        hub.gated.add("me/gated")
        config = folder / "hub" / "me" / "code" / "config.json"
        own = {"model_type": "my_own", "auto_map": {"AutoConfig": "configuration_own.OwnConfig"}}
        config.write_text(json.dumps({**json.loads(config.read_text()), **own}))
        (folder / "file").write_text("a cache cannot be below a file")
        environment = {**os.environ, "HF_HOME": str(folder / "cache"), "HF_ENDPOINT": hub.url}
        command = [sys.executable, "-c", SCRIPT, str(llama), str(folder / "bundle"), COMMIT, str(folder / "file" / "cache")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    results: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return results


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("nothing", "no such model on the Hub"),
        ("gated", "hf auth login"),
        ("code", "--trust-remote-code"),
        ("revision", "me/tiny: has no revision v9"),
        ("draft revision", "me/tiny: has no revision v9"),
        ("cache", "cannot be stored in"),
    ],
)
def test_what_cannot_be_had_is_said(case: str, message: str, found: dict[str, object]) -> None:
    assert message in str(found[case])
    assert "\n" not in str(found[case])


def test_a_draft_is_taken_at_its_own_revision(found: dict[str, object]) -> None:
    assert found["draft"] == ["me/tiny", COMMIT]


def test_revisions_are_only_of_what_is_on_the_hub(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no revisions; leave 'v1' away"):
        export(llama, tmp_path / "bundle", revision="v1")
    for draft in (None, "layers:1"):
        with pytest.raises(UsageError, match="--draft-revision"):
            ExportConfig(str(llama), tmp_path / "bundle", draft=draft, draft_revision="v1")
