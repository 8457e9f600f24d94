"""An environment of its own for every peer, made once and kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PACKAGES = {
    "onnxruntime-genai": ["torch==2.13.0", "onnxruntime-genai==0.18.0", "transformers==5.24.0", "onnx==1.23.2", "onnx-ir==1.1.0"],
    "llama.cpp": ["xllamacpp==2026.10.11549"],
    "llama-cpp-python": ["llama-cpp-python==0.3.36"],  # quantises and gives all logits; built from source, which takes a quarter of an hour
    "openvino-genai": ["torch==2.13.0", "openvino-genai==2026.4.1.0", "optimum-intel[openvino]==2.2.0", "nncf==3.4.0"],
    "optimum-onnx": ["torch==2.13.0", "optimum-onnx[onnxruntime]==0.1.0"],
}


UNWANTED = {"openvino-genai": ["torchvision"]}
"""Packages that a peer's converter asks for and that do not load beside torch's CPU build; a text model needs none of them."""


class Unavailable(Exception):
    """A peer that cannot be installed or fed here, and why."""


def environment(peer: str, folder: Path) -> Path:
    """The Python of the peer's environment under ``folder``."""
    root = folder / f"venv-{peer}"
    python = root / "bin" / "python"
    done = root / "installed"
    if not done.exists():
        quiet(sys.executable, "-m", "venv", "--clear", str(root))
        quiet(str(python), "-m", "pip", "install", "-q", *PACKAGES[peer])
        if peer in UNWANTED:
            quiet(str(python), "-m", "pip", "uninstall", "-q", "-y", *UNWANTED[peer])
        done.touch()
    return python


def quiet(*command: str) -> None:
    """Run a command.

    Raises:
        Unavailable: it fails.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"{' '.join(command[:6])} ... failed: {last_line(done.stderr.strip() or done.stdout)}")


LONGEST = 300  # characters of an error


def last_line(text: str) -> str:
    """Where programs say what was wrong."""
    return "".join(text.strip().splitlines()[-1:])[:LONGEST]


def first_line(text: str) -> str:
    """Where exceptions say it."""
    return "".join(text.strip().splitlines()[:1])[:LONGEST]
