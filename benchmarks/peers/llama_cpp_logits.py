"""llama.cpp's logits, in its own environment, for :mod:`benchmarks.fidelity`.

    python llama_cpp_logits.py FLOAT_GGUF TYPE OUTPUT_GGUF TEXTS_JSON FOLDER

Quantises to TYPE (a name of llama.cpp's, such as Q4_K_M; as-it-is leaves the file alone), runs every list of token ids of
TEXTS_JSON and writes FOLDER/N.npy, float32 ``[n, V]``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import llama_cpp
import numpy as np


def quantise(source: Path, kind: str, output: Path) -> None:
    """As llama.cpp's own tool does by default, without an importance matrix."""
    if output.exists():
        return
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
    unfinished = output.with_suffix(".part")
    if llama_cpp.llama_model_quantize(str(source).encode(), str(unfinished).encode(), options):
        raise SystemExit(f"llama.cpp cannot quantise {source} to {kind}")
    unfinished.rename(output)


def main() -> None:
    source, kind, output, texts, folder = sys.argv[1:]
    if kind != "as-it-is":
        quantise(Path(source), kind, Path(output))
    model = llama_cpp.Llama(output, n_ctx=512, n_batch=512, logits_all=True, verbose=False)
    for index, ids in enumerate(json.loads(Path(texts).read_text())):
        model.reset()
        model.eval(ids)
        np.save(Path(folder) / f"{index}.npy", np.array(model.scores[: len(ids)], np.float32))


if __name__ == "__main__":
    main()
