"""The public layouts of EAGLE heads, recognised by their tensors and checked against the target.

Row j of a head takes token j + 1 and the feature of token j, the target's where the target has seen it, else the head's own.

    EAGLE-1/2   ``fc`` [H, 2H] over (embedding, feature), ``layers.*``, the first usually without ``input_layernorm``; embedding and head
                are the target's, though files may repeat them. The feature is what the target's head reads.
    EAGLE-3     ``fc`` [H, n x H'] over hidden states entering n layers of the target, ``midlayer.*`` (or ``layers.0.*``) whose q, k and v
                read (embedding, feature), 2H wide, ``norm``, ``lm_head`` [Vd, H] over a reduced vocabulary with the map ``d2t``
                (target's id = id + d2t[id]) and its inverse ``t2d``. A file without ``lm_head`` but with ``d2t`` means those rows of the
                target's head, which then need not be stored.
    speculators EAGLE-3 under ``transformer_layer_config``, with norms in further places as the configuration says.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import torch

from edgespec.errors import CheckpointError, UnsupportedModelError
from edgespec.export.checkpoint.complete import HARMLESS
from edgespec.export.heads.base import HeadCheckpoint, TargetShape, need_shape
from edgespec.export.heads.eagle_module import EagleModule, Norms, Structure
from edgespec.export.heads.files import Tensors, open_files
from edgespec.export.passes.tap_features import LAST, entering

FILES = ("model.safetensors.index.json", "model.safetensors", "pytorch_model.bin")
MAPS = ("d2t", "t2d")
LAYER = re.compile(r"layers\.([0-9]{1,3})\.")
EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
LISTENS = "eagle_aux_hidden_state_layer_ids"


@dataclasses.dataclass(frozen=True)
class Layout:
    """A checkpoint that was recognised: its tensors by the module's names, the module's structure, what it reads of the target, and
    the target's id [Vd] of each of its own where these differ."""

    checkpoint: HeadCheckpoint
    structure: Structure
    taps: tuple[str, ...]
    token_ids: np.ndarray | None


def open_layout(source: str, target: TargetShape) -> Layout:
    """A head in a folder or on the Hub.

    Raises:
        CheckpointError: not readable, not one of the layouts, or made for another target.
        UnsupportedModelError: its decoder layer is not one that can be built.
    """
    origin, config, stored = open_files("--eagle", source, FILES)
    if not config:
        raise CheckpointError(f"--eagle {source}: has no config.json")
    names = _names(source, stored)
    three = _is_three(source, config, names)
    borrowed = _borrowed(names, stored, target)
    own = {name: key for name, key in names.items() if name not in borrowed}
    reduced = three and HEAD not in names and "d2t" in stored
    rows = _rows(stored, own, reduced, target)
    token_ids = token_map(source, stored, rows, target.vocab_size)
    some = {}
    if reduced and token_ids is not None:
        del borrowed[HEAD]
        some[HEAD] = target.head, torch.from_numpy(token_ids).long()
    taps = tuple(map(entering, _layers_read(source, config, target))) if three else (LAST,)
    structure = Structure(
        settings=_settings(source, config, names, three, target),
        stored=frozenset(names),
        three=three,
        wide=target.hidden_size * len(taps),
        rows=rows,
        vocabulary=target.vocab_size,
        norms=Norms(**{field.name: bool(config.get(field.name)) for field in dataclasses.fields(Norms)}),
    )
    repeated = {names[name] for name in borrowed if name in names}
    checkpoint = HeadCheckpoint(origin, config, stored, own, borrowed, target.checkpoint, some)
    _check(source, checkpoint, structure, target, repeated)
    return Layout(checkpoint, structure, taps, token_ids)


def _rows(stored: Tensors, own: dict[str, str], reduced: bool, target: TargetShape) -> int:
    """Tokens that the head scores: as many as it has rows, or, where those are the target's, as its map names."""
    if HEAD in own:
        return stored.shapes[own[HEAD]][0]
    return (*stored.shapes["d2t"], 0)[0] if reduced else target.vocab_size


def _names(source: str, stored: Tensors) -> dict[str, str]:
    """Stored names by the module's."""
    names: dict[str, str] = {}
    for key in stored:
        name = re.sub(r"^midlayer\.", "layers.0.", key.removeprefix("model."))
        if name in names:
            raise CheckpointError(f"{source}: has two tensors for {name}: {names[name]} and {key}")
        if name not in MAPS and not HARMLESS.search(name):
            names[name] = key
    if "fc.weight" not in names:
        raise CheckpointError(f"{source}: has no tensor fc.weight, so it is not an EAGLE head")
    return names


def _is_three(source: str, config: dict[str, Any], names: dict[str, str]) -> bool:
    three = "layers.0.hidden_norm.weight" in names
    kind = config.get("speculators_model_type")
    if kind not in (None, "eagle3") or (kind == "eagle3" and not three):
        raise UnsupportedModelError(f"{source}: a speculators head of type {kind!r} in this layout cannot be exported; eagle3 can")
    return three


def _settings(source: str, config: dict[str, Any], names: dict[str, str], three: bool, target: TargetShape) -> dict[str, Any]:
    """Of the decoder layers, in transformers' terms."""
    layer = config.get("transformer_layer_config", config)
    if not isinstance(layer, dict):
        raise CheckpointError(f"{source}: transformer_layer_config is not an object")
    count = 1 + max((int(match[1]) for name in names if (match := LAYER.match(name))), default=0)
    if three and count > 1:
        raise UnsupportedModelError(f"{source}: has {count} decoder layers; EAGLE-3 heads of one can be exported")
    settings = {**layer, "num_hidden_layers": count, "vocab_size": target.vocab_size, "tie_word_embeddings": False}
    kinds = settings.pop("layer_types", None)
    if isinstance(kinds, list) and len(kinds) >= count:
        settings["layer_types"] = kinds[:count]
    return settings


def _layers_read(source: str, config: dict[str, Any], target: TargetShape) -> list[int]:
    """The target's layers in front of which EAGLE-3 listens: what the configuration says, else the paper's low, middle and high."""
    nested = config.get("eagle_config")
    given = config.get(LISTENS, nested.get(LISTENS) if isinstance(nested, dict) else None)
    found = given if given is not None else [2, target.layers // 2, target.layers - 3]
    if not isinstance(found, list) or not found or not all(type(layer) is int and 1 <= layer < target.layers for layer in found):
        last = target.layers - 1
        raise CheckpointError(f"{source}: reads what enters layers {found}, of a target with layers 1 to {last}; it is another target's")
    return sorted(set(found))


def _borrowed(names: dict[str, str], stored: Tensors, target: TargetShape) -> dict[str, str]:
    """Embedding and head that are the target's: left out by the checkpoint, or repeated in it."""
    found = {}
    for name, own in ((EMBEDDING, target.embedding), (HEAD, target.head)):
        key = names.get(name)
        shape = (target.vocab_size, target.hidden_size)
        same = key is None or (stored.shapes[key] == shape and torch.equal(stored[key].float(), target.checkpoint.read_float(own)))
        if same:
            found[name] = own
    return found


def token_map(source: str, stored: Tensors, rows: int, vocabulary: int) -> np.ndarray | None:
    """The target's id, int32 [Vd], of each id of the head; None if they are the same.

    Raises:
        CheckpointError: the map is missing, of another size, leads out of the vocabulary or to one id twice, or its inverse differs.
    """
    if "d2t" not in stored:
        if rows != vocabulary:
            raise CheckpointError(f"{source}: scores {rows} of the target's {vocabulary} tokens and has no map d2t that says which")
        return None
    offsets: np.ndarray = stored["d2t"].to(torch.int64).numpy()
    if offsets.shape != (rows,):
        raise CheckpointError(f"{source}: its map d2t has shape {list(offsets.shape)} where its head scores {rows} tokens")
    ids: np.ndarray = np.arange(rows) + offsets
    outside = ids[(ids < 0) | (ids >= vocabulary)]
    if len(outside):
        raise CheckpointError(f"{source}: its map d2t leads to id {int(outside[0])}, and the target has 0 to {vocabulary - 1}")
    if len(np.unique(ids)) != rows:
        raise CheckpointError(f"{source}: its map d2t leads to one id twice")
    if "t2d" in stored:
        known = stored["t2d"].numpy().astype(bool)
        if known.shape != (vocabulary,) or int(known.sum()) != rows or not known[ids].all():
            raise CheckpointError(f"{source}: its maps d2t and t2d contradict each other")
    return ids.astype(np.int32)


def _check(source: str, checkpoint: HeadCheckpoint, structure: Structure, target: TargetShape, repeated: set[str]) -> None:
    """Every parameter has its tensor, in its shape, and every tensor its parameter."""
    module = EagleModule(structure)
    columns = structure.wide if structure.three else 2 * target.hidden_size
    found = checkpoint.stored_shape("fc.weight")
    if found is not None and found[-1] != columns:
        why = f"a target of hidden size {target.hidden_size}"
        raise CheckpointError(f"{source}: fc reads {found[-1]} columns where {why} asks for {columns}; it is another target's")
    if not structure.three and module.hidden_size != target.hidden_size:
        raise CheckpointError(f"{source}: has hidden size {module.hidden_size} and the target {target.hidden_size}; it is another target's")
    parameters = dict(module.named_parameters(remove_duplicate=False))
    for name, parameter in parameters.items():
        if name in checkpoint.borrowed:
            if tuple(parameter.shape) != (target.vocab_size, target.hidden_size):
                raise CheckpointError(f"{source}: has no tensor {name}, and the target's is of another width; the head is incomplete")
            continue
        need_shape(source, name, checkpoint.stored_shape(name), tuple(parameter.shape), "its configuration for this target")
    strangers = [*(key for key in checkpoint.unused() if key not in MAPS and key not in repeated and not HARMLESS.search(key))]
    strangers += sorted(checkpoint.names() - set(parameters))
    if strangers:
        raise CheckpointError(f"{source}: has a tensor {strangers[0]} that an EAGLE head has no place for")
