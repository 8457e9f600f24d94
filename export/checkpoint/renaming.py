"""From the tensor names of a checkpoint to those of the transformers model, by transformers' own tables.

Checkpoints keep the names and the layout of the release that wrote them: the decoder inside a multimodal model has another
prefix, the experts of a layer are tensors of their own and are one tensor in the model, an old head has an old name.
transformers knows what to do per architecture and does it for all tensors at once; here it is done for one tensor at a time.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable

import torch
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

Reader = Callable[[str], torch.Tensor]


@dataclasses.dataclass
class Conversion:
    """Stored tensors that make one or several of the model's. ``parts`` are their names by the converter's source pattern."""

    converter: WeightConverter
    first: str
    parts: dict[str, list[str]] = dataclasses.field(default_factory=dict)

    def make(self, name: str, read: Reader) -> torch.Tensor:
        """The model's tensor ``name``; ``read`` reads a stored one."""
        work = copy.deepcopy(self.converter)
        for pattern, stored in self.parts.items():
            for part in stored:
                work.add_tensor(self.first, part, pattern, _deferred(read, part))
        result = work.convert(self.first)[name]
        tensor: torch.Tensor = result[0] if isinstance(result, list) else result
        return tensor

    def targets(self) -> list[str]:
        patterns = self.converter.target_patterns
        return [self.first.replace(patterns[0], pattern) for pattern in patterns]


@dataclasses.dataclass(frozen=True)
class Renaming:
    """Where the model's tensors are: under another name (``aliases``), or to be made of others (``conversions``)."""

    aliases: dict[str, str]
    conversions: dict[str, Conversion]


def find_renaming(model: PreTrainedModel, stored: Iterable[str]) -> Renaming:
    """What leads from the ``stored`` names to those of ``model``. Tensors under their own name are in neither table."""
    wanted = model.state_dict()
    steps = get_model_conversion_mapping(model)
    renamings = [step for step in steps if isinstance(step, WeightRenaming)]
    converters = [step for step in steps if isinstance(step, WeightConverter)]
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    prefix = model.base_model_prefix
    aliases: dict[str, str] = {}
    conversions: dict[str, Conversion] = {}
    # In transformers' own order: experts are numbered, and 10 comes after 9.
    for name in sorted(stored, key=dot_natural_key):
        renamed, pattern = rename_source_key(name, renamings, converters, prefix, wanted)
        if renamed not in wanted and name in wanted:
            renamed, pattern = rename_source_key(name, [], [], prefix, wanted)
        if renamed not in wanted:
            continue  # a part that the decoder has not, the vision tower for example
        if pattern is not None:
            made = conversions.setdefault(renamed, Conversion(by_pattern[pattern], renamed))
            made.parts.setdefault(pattern, []).append(name)
        elif renamed != name:
            aliases[renamed] = name
    return Renaming(aliases, {target: made for made in conversions.values() for target in made.targets()})


def _deferred(read: Reader, name: str) -> Callable[[], torch.Tensor]:
    return lambda: read(name)
