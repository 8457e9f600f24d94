"""Shards of the corpus: texts with the target's features and labels, one file of safetensors each.

tokens    int32 [N]        of all texts, one behind the other
features  float16 [N, F]   the target's hidden states; left out of shards beyond the space that is allowed
likely    int32 [M, 8]     the target's likeliest next tokens of the labelled rows, and
log_p     float16 [M, 8]   the logarithms of their probabilities; left out with the features
texts     int32 [n, 4]     of each text the first token, the first labelled row, the category and whether it is the most likely text
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from edgespec.errors import CheckpointError
from edgespec.export.distill.continuous_batching import LABELS, Text
from edgespec.files import whole


@dataclasses.dataclass(frozen=True)
class Entry:
    """A text of a shard with what it is: its category, whether greedy, and what it answers (empty if that is no single turn)."""

    text: Text
    category: str
    greedy: bool
    prompt: str = ""


@dataclasses.dataclass(frozen=True)
class Shard:
    """What a file holds, read when asked for."""

    path: Path
    tokens: np.ndarray
    bounds: np.ndarray
    """[n + 1], where the texts begin and end among the tokens."""
    starts: np.ndarray
    """[n], the first labelled row of each text, counted from the text's beginning."""
    categories: tuple[str, ...]
    greedy: np.ndarray
    prompts: tuple[str, ...]
    statistics: dict[str, Any]
    complete: bool
    """Whether it has features and labels."""

    @property
    def answer_tokens(self) -> int:
        return int((np.diff(self.bounds) - self.starts).sum())

    def __len__(self) -> int:
        return len(self.starts)

    def rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Features [N, F], likely [M, 8] and log_p [M, 8] of all texts."""
        with _opened(self.path) as file:
            return file.get_tensor("features"), file.get_tensor("likely"), file.get_tensor("log_p")


def write_shard(path: Path, entries: Sequence[Entry], statistics: dict[str, Any], *, rows: bool = True) -> None:
    """Write whole or not at all."""
    texts = [entry.text for entry in entries]
    bounds = np.cumsum([0, *(len(text.tokens) for text in texts)])
    names = sorted({entry.category for entry in entries})
    about = [(begin, entry.text.start, names.index(entry.category), entry.greedy) for begin, entry in zip(bounds, entries, strict=False)]
    tensors = {
        "tokens": np.concatenate([np.zeros(0, np.int32), *(text.tokens for text in texts)]).astype(np.int32),
        "texts": np.array(about, np.int32).reshape(-1, 4),
    }
    if rows and texts:
        tensors["features"] = np.concatenate([text.features for text in texts])
        tensors["likely"] = np.concatenate([text.likely for text in texts])
        tensors["log_p"] = np.concatenate([text.log_p for text in texts])
    prompts = [entry.prompt for entry in entries]
    about_all = {"categories": json.dumps(names), "prompts": json.dumps(prompts), "statistics": json.dumps(statistics)}
    with whole(path, synced=True) as file:
        file.write(save(tensors, metadata=about_all))


def read_shard(path: Path) -> Shard:
    """Open a shard.

    Raises:
        CheckpointError: it is damaged.
    """
    with _opened(path) as file:
        try:
            about, known = file.metadata(), set(file.keys())
            tokens, texts = file.get_tensor("tokens"), file.get_tensor("texts")
            names = json.loads(about["categories"])
            bounds = np.append(texts[:, 0], len(tokens)).astype(np.int64)
            shard = Shard(
                path,
                tokens,
                bounds,
                texts[:, 1].astype(np.int64),
                tuple(names[index] for index in texts[:, 2]),
                texts[:, 3].astype(bool),
                tuple(json.loads(about["prompts"])),
                json.loads(about["statistics"]),
                "features" in known or not len(tokens),
            )
            lengths = np.diff(bounds)
            if (lengths <= 0).any() or (shard.starts < 1).any() or (shard.starts > lengths).any() or len(shard.prompts) != len(shard):
                raise ValueError("its texts have impossible bounds")
            if "features" in known:
                shapes = {name: tuple(file.get_slice(name).get_shape()) for name in ("features", "likely", "log_p")}
                rows = (shard.answer_tokens, shapes["likely"][1])
                if shapes["features"][0] != len(tokens) or shapes["likely"] != rows or shapes["log_p"] != rows or rows[1] > LABELS:
                    raise ValueError("its rows are not those of its texts")
        except (SafetensorError, KeyError, TypeError, ValueError, IndexError) as error:
            raise CheckpointError(f"{path}: a damaged part of the corpus ({error}); delete it and go on with --resume") from error
    return shard


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, "np")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: a damaged part of the corpus ({error}); delete it and go on with --resume") from error
