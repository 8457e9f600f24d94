"""The wheel holds what is on disk, and the light half never reaches for the heavy one."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Folder on disk -> package in the wheel, as in pyproject.toml.
FOLDERS = {
    "edgespec": "edgespec",
    "export": "edgespec/export",
    "runtime": "edgespec/runtime",
    "android_demo/demo": "edgespec/demo",
    "optimum_register": "optimum/commands/register",
}
DATA = (".py", ".jsonl", ".html", ".safetensors", ".json", ".md")
FORBIDDEN = ("torch", "transformers", "onnx", "optimum", "onnxscript", "onnx_ir", "safetensors", "gguf", "edgespec.export", "edgespec.cli")


def files_on_disk() -> set[str]:
    """What the wheel should hold: Python files, data files and py.typed, under their names in the wheel."""
    found = set()
    for folder, package in FOLDERS.items():
        for path in (ROOT / folder).rglob("*"):
            inside = path.relative_to(ROOT / folder)
            through_link = folder == "edgespec" and inside.parts[0] in ("export", "runtime", "demo")
            if path.is_file() and not through_link and (path.suffix in DATA or path.name == "py.typed"):
                found.add(f"{package}/{inside.as_posix()}")
    return found


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources: a build leaves folders behind that would be found by the next one."""
    source, output = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, source / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    code = f"from setuptools import build_meta; print(build_meta.build_wheel({str(output)!r}))"
    result = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return next(output.glob("*.whl"))


def test_the_wheel_holds_exactly_the_files_on_disk(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == files_on_disk()
    assert {"edgespec/py.typed", "edgespec/export/__init__.py", "edgespec/runtime/__init__.py"} <= names


def test_the_wheel_has_the_command_and_the_licence(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    info = next(name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name)
    assert "edgespec = edgespec.cli:main" in archive.read(f"{info}/entry_points.txt").decode()
    assert "Apache License" in archive.read(f"{info}/licenses/LICENSE").decode()


FROM_WHEEL = """
import sys
# An editable install of this repository would bring the command a second time.
sys.meta_path = [finder for finder in sys.meta_path if "Editable" not in getattr(finder, "__name__", "")]
sys.path = [sys.argv.pop(1), *(path for path in sys.path if "__editable__" not in path)]
import edgespec
assert edgespec.__file__.startswith(sys.path[0]), edgespec.__file__
from optimum.commands.optimum_cli import main
main()
"""


def test_optimum_finds_the_command_in_the_wheel(wheel: Path, tmp_path: Path) -> None:
    pytest.importorskip("optimum.commands.base")
    zipfile.ZipFile(wheel).extractall(tmp_path)
    command = [sys.executable, "-c", FROM_WHEEL, str(tmp_path), "export", "edgespec", "--help"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "--draft-weights" in result.stdout


def test_every_folder_of_python_files_is_a_package() -> None:
    """A missing __init__.py would still be packed, as a namespace, but mypy and pytest would treat it otherwise."""
    folders = {path.parent for folder in ("edgespec", "export", "runtime", "android_demo/demo") for path in (ROOT / folder).rglob("*.py")}
    assert [folder for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_optimums_namespace_stays_a_namespace() -> None:
    """An __init__.py there would hide the commands of other packages, and other distributions would overwrite it."""
    assert [path.name for path in (ROOT / "optimum_register").glob("*.py")] == ["register_edgespec.py"]


def imports_of(path: Path) -> list[str]:
    """Every module that a file imports anywhere, also inside functions and under TYPE_CHECKING."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: line {node.lineno}: a relative import; import absolutely from edgespec"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def reaches(imported: str, module: str) -> bool:
    return imported == module or imported.startswith(f"{module}.")


def light_files() -> list[Path]:
    """The runtime, the demo, and the core that the exporter shares: everything but edgespec/cli and export/."""
    return sorted([*(ROOT / "runtime").rglob("*.py"), *(ROOT / "android_demo" / "demo").rglob("*.py"), *(ROOT / "edgespec").glob("*.py")])


def test_the_runtime_never_imports_the_exporters_libraries() -> None:
    allowed = {(ROOT / "edgespec" / "__main__.py", "edgespec.cli.main")}
    wrong = [
        f"{path.relative_to(ROOT)}: imports {name}"
        for path in light_files()
        for name in imports_of(path)
        for module in FORBIDDEN
        if reaches(name, module) and (path, name) not in allowed
    ]
    assert wrong == []


def test_the_scan_sees_every_form_of_import(tmp_path: Path) -> None:
    path = tmp_path / "sample.py"
    path.write_text("import torch.nn\ndef f():\n    from edgespec import export\n    import onnxruntime\n")
    assert imports_of(path) == ["torch.nn", "edgespec.export", "onnxruntime"]
    assert [name for name in imports_of(path) if any(reaches(name, module) for module in FORBIDDEN)] == ["torch.nn", "edgespec.export"]


def test_the_two_halves_import_absolutely() -> None:
    """`import export` works from the repository root and fails once installed."""
    paths = [path for folder in ("export", "runtime", "edgespec", "android_demo/demo") for path in (ROOT / folder).rglob("*.py")]
    wrong = [f"{path}: {name}" for path in paths for name in imports_of(path) if reaches(name, "export") or reaches(name, "runtime")]
    assert wrong == []
