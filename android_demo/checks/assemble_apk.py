"""Assembles and signs an APK of the app without Gradle or an Android SDK: ``assemble_apk.py STUBS DX FRAMEWORK OUT``.

STUBS is an unpacked chaquopy-stubs-android, DX the jar of dalvik-exchange, FRAMEWORK Android's own resources (Debian: dalvik-exchange of
version 11, android-framework-res); aapt2, zipalign, apksigner and keytool are called. It shows that manifest, resources, code and assets
fit together in a package that Android's own tools accept. What Chaquopy and ONNX Runtime's archive bring is not in it, so it does not run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import zipfile
from pathlib import Path

import java_stubs

APP = Path(__file__).resolve().parents[1] / "app" / "src" / "main"
PAGE = Path(__file__).resolve().parents[1] / "demo" / "page.html"
PACKAGE = "org.edgespec.demo"
LEAST, TARGET = "24", "36"  # API levels, as in build.gradle.kts
PASSWORD = "pass:android"  # of the key that is made for this package alone


def call(*command: str | Path) -> None:
    """Run a tool; what it prints in vain is printed if it fails."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed\n{done.stdout}{done.stderr}")


def link(framework: Path, out: Path) -> Path:
    """Manifest and resources. Gradle takes the package's name from its own file and adds it."""
    manifest, compiled, linked = out / "AndroidManifest.xml", out / "resources.zip", out / "linked.apk"
    text = (APP / "AndroidManifest.xml").read_text(encoding="utf-8")
    manifest.write_text(text.replace("<manifest ", f'<manifest package="{PACKAGE}" ', 1), encoding="utf-8")
    call("aapt2", "compile", "--dir", APP / "res", "-o", compiled)
    levels = ("--min-sdk-version", LEAST, "--target-sdk-version", TARGET)
    call("aapt2", "link", "-I", framework, "--manifest", manifest, *levels, "-o", linked, compiled)
    return linked


def translate(stubs: Path, dx: Path, out: Path) -> Path:
    """The app's Java as one dex file, without the classes that it is compiled against."""
    if java_stubs.main(stubs, out):
        raise SystemExit("the app's Java does not compile")
    own = out / "own"
    for path in (out / "classes").joinpath(*PACKAGE.split(".")).rglob("*.class"):
        place = own / path.relative_to(out / "classes")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())
    dex = out / "classes.dex"
    call("java", "-cp", dx, "com.android.dx.command.Main", "--dex", f"--min-sdk-version={LEAST}", f"--output={dex}", own)
    return dex


def sign(unsigned: Path, out: Path) -> Path:
    """Aligned, and signed with a key of its own."""
    aligned, signed, key = out / "aligned.apk", out / "edgespec-demo.apk", out / "key.p12"
    call("zipalign", "-f", "4", unsigned, aligned)
    names = ("-alias", "debug", "-dname", "CN=edgespec build check", "-storepass:env", "KEY_PASSWORD", "-keystore", key)
    call("env", "KEY_PASSWORD=android", "keytool", "-genkeypair", "-keyalg", "RSA", "-validity", "30", "-storetype", "PKCS12", *names)
    call("apksigner", "sign", "--ks", key, "--ks-pass", PASSWORD, "--min-sdk-version", LEAST, "--out", signed, aligned)
    call("apksigner", "verify", "--min-sdk-version", LEAST, signed)
    return signed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("stubs", "dx", "framework", "out"):
        parser.add_argument(name, type=Path)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    linked, dex = link(args.framework, args.out), translate(args.stubs, args.dx, args.out)
    with zipfile.ZipFile(linked, "a", zipfile.ZIP_DEFLATED) as package:
        package.write(dex, "classes.dex")
        package.write(PAGE, "assets/page.html")
    signed = sign(linked, args.out)
    print(f"{signed}: {signed.stat().st_size} bytes, assembled, aligned, signed and verified")


if __name__ == "__main__":
    sys.exit(main())
