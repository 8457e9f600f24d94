"""What of the Android project can be checked without Gradle, an SDK or a device."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

from edgespec import __version__
from edgespec.runtime.ort import LIBRARY_VARIABLE
from tests.helpers.blocker import BLOCKER
from tests.helpers.bundles import make_attention_bundle
from tests.helpers.onnxruntime import wheel_library
from tests.runtime.text.test_chatml import TEMPLATES

ROOT = Path(__file__).resolve().parents[2]
PROJECT = ROOT / "android_demo"
MAIN = PROJECT / "app" / "src" / "main"
JAVA = MAIN / "java" / "org" / "edgespec" / "demo"
ANDROID = "{http://schemas.android.com/apk/res/android}"
MOST_PAYLOAD = 300_000  # bytes of an APK that are ours, compressed


def gathered(out: Path) -> Path:
    """The Python that the Gradle file puts into the app, put together as its task does."""
    script = (PROJECT / "app" / "build.gradle.kts").read_text(encoding="utf-8")
    task = script.partition('register<Sync>("gatherPython")')[2].partition("\n}\n")[0]
    parts = re.findall(r'from\((\w+)\.resolve\("(\w+)"\)\) \{(.*?)\n    \}', task, re.DOTALL)
    assert [folder for _, folder, _ in parts] == ["edgespec", "runtime", "demo"]
    for base, folder, rules in parts:
        source = (ROOT if base == "repository" else PROJECT) / folder
        into = out / re.findall(r'into\("(.*?)"\)', rules)[0]
        included = re.findall(r'"(.*?)"', re.findall(r"include\((.*?)\)", rules)[0])
        excluded = re.findall(r'"(.*?)"', "".join(re.findall(r"exclude\((.*?)\)", rules)))
        for pattern in included:
            for path in source.glob(pattern):
                if path.name not in excluded:
                    target = into / path.relative_to(source)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, target)
    return out


IN_THE_APP = (
    BLOCKER
    + """
folder, files = sys.argv[1:]
sys.path.insert(0, folder)
from edgespec.demo import android
events = []

class Shell:
    def onEvent(self, text):
        events.append(json.loads(text))

service = android.start(files, files, files, Shell())
assert service.wait(60)
service.receive(json.dumps({"type": "settings", "values": {"max_new_tokens": 20, "threads": 1}}))
assert service.wait(60)
service.receive(json.dumps({"type": "send", "text": "hello"}))
assert service.wait(60)
service.trim()
service.save()
import edgespec
assert edgespec.__file__.startswith(folder), edgespec.__file__
print(json.dumps(events))
"""
)


def test_what_goes_into_the_app_is_enough(tmp_path: Path) -> None:
    """Its Python, gathered as Gradle gathers it, answers with numpy and ONNX Runtime's C library alone."""
    folder = gathered(tmp_path / "python")
    make_attention_bundle(tmp_path / "files" / "bundles" / "tiny", chat=TEMPLATES["plain"])
    paths = [path for path in sys.path if path and not (Path(path) / "edgespec").exists()]
    environment = {**os.environ, LIBRARY_VARIABLE: str(wheel_library()), "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-S", "-c", IN_THE_APP, str(folder), str(tmp_path / "files")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    events = json.loads(done.stdout.splitlines()[-1])
    assert [event for event in events if event["type"] == "error"] == []
    assert [event["new_tokens"] for event in events if event["type"] == "finished"] == [20]
    assert (tmp_path / "files" / "demo" / "conversation.json").exists()


def test_the_payload_is_small(tmp_path: Path) -> None:
    folder = gathered(tmp_path / "python")
    archive = tmp_path / "payload.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in [*folder.rglob("*"), PROJECT / "demo" / "page.html", *MAIN.rglob("*")]:
            if path.is_file():
                file.write(path)
    assert archive.stat().st_size < MOST_PAYLOAD


def test_the_manifest_asks_for_nothing() -> None:
    manifest = ElementTree.parse(MAIN / "AndroidManifest.xml").getroot()
    assert {element.tag for element in manifest.iter()} == {
        "manifest", "application", "activity", "intent-filter", "action", "category",
    }, "no permission, no service, no provider"  # fmt: skip
    for element in manifest.iter():
        name = element.get(f"{ANDROID}name", "")
        if name.startswith("."):
            assert (JAVA / f"{name[1:]}.java").is_file()
    assert manifest.find("application").get(f"{ANDROID}allowBackup") == "false"  # type: ignore[union-attr]


def test_versions_agree() -> None:
    script = (PROJECT / "app" / "build.gradle.kts").read_text(encoding="utf-8")
    for part in ("minSdk = 24", '"arm64-v8a", "x86_64"', 'version = "3.13"', f'versionName = "{__version__}"'):
        assert part in script
    for path in PROJECT.rglob("*.kts"):
        text = path.read_text(encoding="utf-8")
        assert all(text.count(one) == text.count(other) for one, other in ("()", "{}", "[]")), path


def test_java_and_python_call_each_other_by_names_that_are_there() -> None:
    from edgespec.demo import android
    from edgespec.demo.service import Service

    java = "".join(path.read_text(encoding="utf-8") for path in JAVA.glob("*.java"))
    for owner, name in re.findall(r"(module|service)\.callAttr\(\"(\w+)\"", java):
        assert callable(getattr(android if owner == "module" else Service, name)), name
    for name in ("onEvent", "names", "open"):
        assert re.search(rf"public \S+ {name}\(", java)
    assert 'getModule("edgespec.demo.android")' in java
    page = (PROJECT / "demo" / "page.html").read_text(encoding="utf-8")
    assert "window.Android.receive(" in page
    assert re.search(r"@JavascriptInterface\s+public void receive\(String", java)
    assert '"receive("' in java
    assert "window.receive = receive" in page


FRAMEWORK = Path("/usr/share/android-framework-res/framework-res.apk")


@pytest.mark.slow
def test_resources_and_manifest_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With aapt2 against Android's own resources (Debian: aapt, android-framework-res)."""
    if shutil.which("aapt2") is None or not FRAMEWORK.exists():
        pytest.skip("needs aapt2 and android-framework-res")
    monkeypatch.syspath_prepend(PROJECT / "checks")
    import assemble_apk

    apk = assemble_apk.link(FRAMEWORK, tmp_path)
    shown = subprocess.run(["aapt2", "dump", "badging", apk], check=True, capture_output=True, text=True).stdout
    assert "launchable-activity: name='org.edgespec.demo.MainActivity'" in shown
    assert "uses-permission" not in shown


@pytest.mark.slow
def test_a_package_is_assembled_and_signed(tmp_path: Path) -> None:
    """EDGESPEC_ANDROID_DX names the jar of dalvik-exchange; Debian's tools do the rest."""
    stubs, dx = os.environ.get("EDGESPEC_ANDROID_STUBS"), os.environ.get("EDGESPEC_ANDROID_DX")
    if not stubs or not dx or not FRAMEWORK.exists() or not all(map(shutil.which, ("aapt2", "javac", "zipalign", "apksigner"))):
        pytest.skip("needs chaquopy-stubs-android, dalvik-exchange, android-framework-res, aapt2, javac, zipalign and apksigner")
    check = [sys.executable, str(PROJECT / "checks" / "assemble_apk.py"), stubs, dx, str(FRAMEWORK), str(tmp_path)]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    with zipfile.ZipFile(tmp_path / "edgespec-demo.apk") as package:
        names = set(package.namelist())
        code = package.read("classes.dex")
    assert {"AndroidManifest.xml", "resources.arsc", "classes.dex", "assets/page.html"} <= names
    assert b"Lorg/edgespec/demo/MainActivity;" in code
    assert b"Lcom/chaquo/python/Python;" in code, "referred to, and brought by Chaquopy"


@pytest.mark.slow
def test_the_java_compiles_against_androids_signatures(tmp_path: Path) -> None:
    """EDGESPEC_ANDROID_STUBS names an unpacked chaquopy-stubs-android."""
    stubs = os.environ.get("EDGESPEC_ANDROID_STUBS")
    if not stubs or shutil.which("javac") is None:
        pytest.skip("needs javac and chaquopy-stubs-android")
    check = [sys.executable, str(PROJECT / "checks" / "java_stubs.py"), stubs, str(tmp_path)]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "classes" / "org" / "edgespec" / "demo" / "MainActivity.class").exists()
