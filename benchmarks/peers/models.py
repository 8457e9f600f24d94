"""The same weights for all peers, and the same draft: the target's own first layers.

Every function makes what is not there yet, with the peer's own tool where it has one, and keeps it in the folder that it is given.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers.environments import environment, quiet


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


def first_layers(checkpoint: Path, folder: Path, layers: int) -> Path:
    """The checkpoint with its first ``layers`` layers only: what ``edgespec export --draft layers:N`` makes of it."""
    output = folder / f"{checkpoint.name}-layers{layers}"
    if not (output / "config.json").exists():
        import torch
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(checkpoint, num_hidden_layers=layers, dtype=torch.float32)
        for file in checkpoint.iterdir():
            if file.suffix in (".json", ".jinja") and file.name != "config.json":
                output.mkdir(exist_ok=True)
                shutil.copy(file, output)
        model.save_pretrained(output)
    return output


def rewritten_gguf(source: Path, output: Path, kind: str | None = None, layers: int | None = None) -> Path:
    """A GGUF file with the same metadata.

    Args:
        source: a GGUF file.
        output: where the new one is put, unless it is there already.
        kind: what matrices are stored as, a name of ggml's such as Q8_0; by default all tensors stay as they are.
        layers: so many of the first layers, all by default.
    """
    if output.exists():
        return output
    import numpy as np
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, dequantize, quantize

    reader, unfinished = GGUFReader(source), output.with_suffix(".part")
    architecture = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(unfinished, architecture)
    left_out = ["general.architecture", *(["general.file_type", "general.quantization_version"] if kind else [])]
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in left_out:
            value_kind, *inner = field.types
            value = layers if layers is not None and name == f"{architecture}.block_count" else field.contents()
            writer.add_key_value(name, value, value_kind, inner[-1] if value_kind == GGUFValueType.ARRAY else None)
    for tensor in reader.tensors:
        if layers is not None and tensor.name.startswith("blk.") and int(tensor.name.split(".")[1]) >= layers:
            continue
        if kind is None:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            continue
        wanted = GGMLQuantizationType[kind] if len(tensor.shape) > 1 else GGMLQuantizationType.F32  # llama.cpp takes norms in float only
        values = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        writer.add_tensor(tensor.name, quantize(values, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.rename(output)
    return output


def float_gguf(gguf: Path, folder: Path) -> Path:
    """The GGUF's weights as float32 in a GGUF file, which llama.cpp quantises anew."""
    return rewritten_gguf(gguf, folder / "float.gguf", "F32")


def genai_model(checkpoint: Path, folder: Path, bits: int, block: int, algorithm: str = "default") -> Path:
    """The model as onnxruntime-genai's own builder makes it, by default or with another of its algorithms."""
    output = folder / (f"genai-int{bits}-block{block}{_part(checkpoint)}" + ("" if algorithm == "default" else f"-{algorithm}"))
    if not (output / "genai_config.json").exists():
        python = environment("onnxruntime-genai", folder)
        options = [f"block_size={block}", "accuracy_level=4", f"algo_config={algorithm}"]
        arguments = ["-m", str(checkpoint), "-o", str(output), "-p", f"int{bits}", "-e", "cpu", "-c", str(folder / "genai-cache")]
        quiet(str(python), "-m", "onnxruntime_genai.models.builder", *arguments, "--extra_options", *options)
    return output


def genai_pair(target: Path, draft: Path) -> Path:
    """Both in one folder, as onnxruntime-genai wants a pair: it refuses paths that lead out of the folder."""
    output = target.with_name(f"{draft.name}-pair")
    if not (output / "genai_config.json").exists():
        for model, place in ((target, output), (draft, output / "draft")):
            place.mkdir(exist_ok=True)
            for file in model.iterdir():
                if file.name != "genai_config.json" and not (place / file.name).exists():
                    os.link(file, place / file.name)
        config = json.loads((target / "genai_config.json").read_text())
        drafting = json.loads((draft / "genai_config.json").read_text())["model"]["decoder"]
        config["model"]["draft"] = {**drafting, "filename": f"draft/{drafting['filename']}"}
        (output / "genai_config.json").write_text(json.dumps(config, indent=4))
    return output


def openvino_model(checkpoint: Path, folder: Path, bits: int, block: int) -> Path:
    """The model as optimum-intel converts it, every weight of the same width in groups of ``block``, or by channel at 8 bits."""
    output = folder / f"openvino-int{bits}-block{block}{_part(checkpoint)}"
    if not (output / "openvino_model.xml").exists():
        python = environment("openvino-genai", folder)
        options = ["--weight-format", f"int{bits}", *(["--group-size", str(block), "--ratio", "1.0"] if bits == 4 else [])]
        arguments = ["-m", str(checkpoint), "--task", "text-generation-with-past", *options, str(output)]
        quiet(str(python.with_name("optimum-cli")), "export", "openvino", *arguments)
    return output


def optimum_onnx_model(checkpoint: Path, folder: Path) -> Path:
    """The model as optimum-onnx exports it and quantises it to 8 bits, dynamically, which is all that it has."""
    output = folder / f"optimum-onnx-int8{_part(checkpoint)}"
    if not (output / "config.json").exists():
        given = folder / f"{checkpoint.name}-transformers4"  # its transformers is older than 5, and knows rotary's base by another name
        given.mkdir(exist_ok=True)
        for file in checkpoint.iterdir():
            if file.name != "config.json" and not (given / file.name).exists():
                os.link(file, given / file.name)
        config = json.loads((checkpoint / "config.json").read_text())
        (given / "config.json").write_text(json.dumps({**config, **config["rope_parameters"]}))
        cli = environment("optimum-onnx", folder).with_name("optimum-cli")
        exported = folder / f"optimum-onnx{_part(checkpoint)}"
        quiet(str(cli), "export", "onnx", "-m", str(given), "--task", "text-generation-with-past", str(exported))
        quiet(str(cli), "onnxruntime", "quantize", "--onnx_model", str(exported), "--avx512_vnni", "-o", str(output))
    return output


def edgespec_bundle(gguf: Path, folder: Path, weights: str, block: int, *more: str) -> Path:
    """Our own export of the same weights, with ``more`` options of the command."""
    output = folder / "-".join(["edgespec", weights, f"block{block}", *(option.lstrip("-") for option in more)])
    if not output.exists():
        options = ["--weights", weights, "--block-size", str(block), *more, "--quiet"]
        quiet(sys.executable, "-m", "edgespec", "export", str(gguf), "-o", str(output), *options)
    return output


def bytes_of(*models: Path) -> int:
    """What models take on disk, files that several share once."""
    files = (file for model in models for file in ([model] if model.is_file() else model.rglob("*")) if file.is_file())
    return sum({(stat.st_dev, stat.st_ino): stat.st_size for stat in (file.stat() for file in files)}.values())


def _part(checkpoint: Path) -> str:
    """What makes the checkpoint another one than the whole target, as an ending of a name."""
    return checkpoint.name.removeprefix("checkpoint")
