"""An environment of its own for every peer, and the same weights for all of them; both made once and kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

PACKAGES = {
    "onnxruntime-genai": ["torch==2.13.0", "onnxruntime-genai==0.18.0", "transformers==5.24.0", "onnx==1.23.2", "onnx-ir==1.1.0"],
    "llama.cpp": ["xllamacpp==2026.10.11549"],
    "llama-cpp-python": ["llama-cpp-python==0.3.36"],  # quantises and gives all logits; built from source, which takes a quarter of an hour
    "openvino-genai": ["torch==2.13.0", "openvino-genai==2026.4.1.0", "optimum-intel[openvino]==2.2.0", "nncf==3.4.0"],
}


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
        done.touch()
    return python


def float_checkpoint(gguf: Path, folder: Path) -> Path:
    """The GGUF's weights as a float32 checkpoint folder, which the peers' converters read."""
    output = folder / "checkpoint"
    if not (output / "config.json").exists():
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

        options: dict[str, Any] = {"gguf_file": gguf.name, "local_files_only": True}
        AutoTokenizer.from_pretrained(gguf.parent, **options).save_pretrained(output)
        options |= {"quantization_config": GgufConfig(dequantize=True), "dtype": torch.float32}
        AutoModelForCausalLM.from_pretrained(gguf.parent, **options).save_pretrained(output)
    return output


def float_gguf(gguf: Path, folder: Path) -> Path:
    """The GGUF's weights as float32 in a GGUF file, which llama.cpp quantises anew."""
    output = folder / "float.gguf"
    if not output.exists():
        import numpy as np
        from gguf import GGUFReader, GGUFValueType, GGUFWriter, dequantize

        reader, unfinished = GGUFReader(gguf), output.with_suffix(".part")
        architecture = reader.fields["general.architecture"].contents()
        writer = GGUFWriter(unfinished, architecture)
        left_out = ("general.architecture", "general.file_type", "general.quantization_version")
        for name, field in reader.fields.items():
            if not name.startswith("GGUF.") and name not in left_out:
                kind, *inner = field.types
                writer.add_key_value(name, field.contents(), kind, inner[-1] if kind == GGUFValueType.ARRAY else None)
        for tensor in reader.tensors:
            writer.add_tensor(tensor.name, np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        unfinished.rename(output)
    return output


def genai_model(checkpoint: Path, folder: Path, bits: int, block: int, algorithm: str = "default") -> Path:
    """The model as onnxruntime-genai's own builder makes it, by default or with another of its algorithms."""
    output = folder / (f"genai-int{bits}-block{block}" + ("" if algorithm == "default" else f"-{algorithm}"))
    if not (output / "genai_config.json").exists():
        python = environment("onnxruntime-genai", folder)
        options = [f"int4_block_size={block}", "int4_accuracy_level=4", f"int4_algo_config={algorithm}"]
        arguments = ["-m", str(checkpoint), "-o", str(output), "-p", f"int{bits}", "-e", "cpu", "-c", str(folder / "genai-cache")]
        quiet(str(python), "-m", "onnxruntime_genai.models.builder", *arguments, "--extra_options", *options)
    return output


def openvino_model(checkpoint: Path, folder: Path, bits: int, block: int) -> Path:
    """The model as optimum-intel converts it, every weight of the same width in groups of ``block``, or by channel at 8 bits."""
    output = folder / f"openvino-int{bits}-block{block}"
    if not (output / "openvino_model.xml").exists():
        python = environment("openvino-genai", folder)
        options = ["--weight-format", f"int{bits}", *(["--group-size", str(block), "--ratio", "1.0"] if bits == 4 else [])]
        arguments = ["-m", str(checkpoint), "--task", "text-generation-with-past", *options, str(output)]
        quiet(str(python.with_name("optimum-cli")), "export", "openvino", *arguments)
    return output


def edgespec_bundle(gguf: Path, folder: Path, weights: str, block: int, *more: str) -> Path:
    """Our own export of the same weights, with ``more`` options of the command."""
    output = folder / "-".join(["edgespec", weights, f"block{block}", *(option.lstrip("-") for option in more)])
    if not output.exists():
        options = ["--weights", weights, "--block-size", str(block), *more, "--quiet"]
        quiet(sys.executable, "-m", "edgespec", "export", str(gguf), "-o", str(output), *options)
    return output


def quiet(*command: str) -> None:
    """Run a command.

    Raises:
        Unavailable: it fails.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise Unavailable(f"{' '.join(command[:6])} ... failed: {''.join(last)[:300]}")
