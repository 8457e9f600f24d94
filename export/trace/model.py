"""Building a transformers model for tracing: all of its structure, none of its weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from accelerate import init_empty_weights
from optimum.exporters.tasks import TasksManager
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from edgespec.errors import UnsupportedModelError
from edgespec.export.standins.attention import IMPLEMENTATION, start_tape
from edgespec.export.trace.cache import GraphCache
from edgespec.manifest import KvLayer

TASK = "text-generation"
TASK_MULTIMODAL = "image-text-to-text"


def build_empty(config: Any, attention: str = IMPLEMENTATION) -> PreTrainedModel:
    """The model of ``config`` with parameters on the meta device and real buffers (they are small and not in checkpoints).

    A multimodal model is built whole, so that its tensors have the names they have in checkpoints; only its decoder is ever run.

    Raises:
        UnsupportedModelError: transformers has no decoder for this configuration.
    """
    try:
        multimodal = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING and type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING
        task = TASK_MULTIMODAL if multimodal else TASK
        auto_class = TasksManager.get_model_class_for_task(task, framework="pt", model_type=config.model_type)
        with no_init_weights(), init_empty_weights(include_buffers=False):
            options = {"attn_implementation": attention, "experts_implementation": attention, "dtype": torch.float32}
            # A configuration that came as code was let in when it was opened; its model is from the same source.
            own_code = type(config).__module__.startswith("transformers_modules")
            model = auto_class.from_config(config, **options, **({"trust_remote_code": True} if own_code else {}))
    except (ValueError, KeyError, ImportError) as error:
        if error.args == (IMPLEMENTATION,):  # it looks the name up in a table of its own classes
            plain = build_empty(config, "eager")
            raise _no_interface(plain, decoder_layers(plain), 0) from error
        raise UnsupportedModelError(f"{config.model_type}: cannot be built as a decoder: {str(error).splitlines()[0]}") from error
    model.tie_weights()
    return model.eval()


def tied_names(model: nn.Module) -> dict[str, str]:
    """For every parameter's name, the first name under which the model has the same parameter."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(parameter), name) for name, parameter in model.named_parameters(remove_duplicate=False)}


def matrix_names(model: PreTrainedModel) -> tuple[str, str]:
    """First names of the embedding and of the head, the same one if they are tied."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return names[id(model.get_input_embeddings().weight)], names[id(model.get_output_embeddings().weight)]


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The list of decoder layers."""
    count = model.config.get_text_config().num_hidden_layers
    for module in model.get_decoder().modules():  # the decoder alone: a vision tower has layers too
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise UnsupportedModelError(f"{model.config.model_type}: no list of {count} decoder layers found in {type(model).__name__}")


@contextlib.contextmanager
def fake_parameters(model: nn.Module) -> Iterator[FakeTensorMode]:
    """Give the meta parameters fake CPU tensors, which torch.export can trace; tied ones stay tied."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    made: dict[int, nn.Parameter] = {}
    with mode:
        for module in model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    if id(parameter) not in made:
                        made[id(parameter)] = nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype), requires_grad=False)
                    module._parameters[name] = made[id(parameter)]
    yield mode


def discover_layers(model: Any, features: Mapping[str, int] = MappingProxyType({})) -> tuple[KvLayer, ...]:
    """Per-layer KV shapes, from one pass without values; to be called within :func:`fake_parameters`. ``features`` are further
    inputs, as for :func:`edgespec.export.trace.exporting.trace`.

    Raises:
        UnsupportedModelError: a layer that attends by other means than transformers' attention interface (state
            space, convolution, ALiBi), named with its class.
    """
    tape = start_tape(None)
    layers = decoder_layers(model)
    running = [0]
    hooks = [layer.register_forward_pre_hook(_notes(running, index)) for index, layer in enumerate(layers)]
    try:
        with torch.no_grad():
            ids = torch.zeros(1, 4, dtype=torch.long)
            more = {"features": [torch.zeros(1, 4, width) for width in features.values()]} if features else {}
            model(input_ids=ids, position_ids=ids, past_key_values=GraphCache(len(layers)), use_cache=True, **more)
    except UnsupportedModelError:
        raise
    except Exception as error:  # whatever torch or the model's code raise, it is this layer that cannot be traced
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UnsupportedModelError(f"{_named(model, layers, running[0])} cannot run on a KV cache of rows: {reason[:200]}") from error
    finally:
        for hook in hooks:
            hook.remove()
    for index in range(len(layers)):
        if index not in tape.layers and index not in tape.shared:
            raise _no_interface(model, layers, index)
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or []
    if "chunked_attention" in kinds:
        raise UnsupportedModelError(f"{_named(model, layers, kinds.index('chunked_attention'))} attends in chunks, which is not supported")
    for index, layer in sorted(tape.layers.items()):
        if layer.key_dim != layer.value_dim:
            raise UnsupportedModelError(
                f"{_named(model, layers, index)} has keys of {layer.key_dim} numbers and values of {layer.value_dim}; "
                "the attention operator takes only equal ones"
            )
    own = sorted(tape.layers)
    for index, owner in sorted(tape.shared.items()):
        if index < own[-1]:
            raise UnsupportedModelError(
                f"{_named(model, layers, index)} shares the KV cache of layer {owner}, and later layers have their own again"
            )
    return tuple(tape.layers[index] for index in own)


def _notes(running: list[int], index: int) -> Any:
    def hook(_module: nn.Module, _args: Any) -> None:
        running[0] = index

    return hook


def _no_interface(model: PreTrainedModel, layers: nn.ModuleList, index: int) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{_named(model, layers, index)} does not use the attention interface, so it has no KV cache that can be rolled back"
    )


def _named(model: PreTrainedModel, layers: nn.ModuleList, index: int) -> str:
    kinds = sorted({type(module).__name__ for module in layers[index].children()})
    return f"{model.config.model_type}: layer {index} ({type(layers[index]).__name__}: {', '.join(kinds)})"
