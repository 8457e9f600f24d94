"""What an export was asked to do, and what it did."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from edgespec.errors import UsageError
from edgespec.manifest import Manifest

WEIGHT_TYPES = ("int4", "int8", "mixed", "keep", "fp32")
METHODS = ("gptq", "search", "rtn")
DEFAULT_METHODS = {"int4": "gptq", "mixed": "gptq"}  # else "search": at 8 bits there is next to nothing to gain
DEFAULT_CONTEXT_LIMIT = 4096
KV_TYPES = ("float32", "int8", "int4")
NPU_ACTIVATIONS = ("float", "int16")
PROFILES = ("cpu", "cuda", "webgpu", "npu")
NPU_WIDTHS = (1, 5, 64)
LAYERS_PREFIX, SELF = "layers:", "self"


@dataclasses.dataclass(frozen=True)
class ExportConfig:
    """One export.

    ``target`` and ``draft`` are a Hub id, a checkpoint folder or a ``.gguf`` file; ``draft="layers:N"`` makes the draft
    from the target's own first N layers, and ``draft="self"`` from all of them in other ``draft_weights``; of several drafts
    trees are made together. ``medusa`` and ``eagle`` are draft heads for the target, a Hub id or a folder each.
    ``context`` is the largest number of KV rows, by default the model's own limit but at most 4096. ``max_width`` is the
    largest number of new tokens in a verification pass. ``max_kl`` is the largest mean KL divergence from the original model,
    in nats, that is accepted; by default it depends on ``weights``.
    ``symmetric`` weights of int4 or int8 have no zero points: passes are quicker, and the result is less like the original.
    ``method`` is how weights are quantised, by default what is best for ``weights``; ``calibration`` is a text file for GPTQ in place of
    the project's own text. ``target_size`` is the number of bytes that the target's quantised weights may take with weights "mixed".
    ``kv`` are the types of KV caches of target and draft models, a graph for each over the same weights; the first is used unless the
    other is asked for. Draft heads keep float32.
    ``profiles`` are graphs to add to the one that every model has: "cuda", "webgpu" or "npu" ("cpu" stands for that one). ``npu_widths``
    are the numbers of new tokens of the graphs of fixed shapes: of plain decoding, of verification passes, and of a chunk of the prompt.
    With ``npu_activations`` "int16" these compute with whole numbers of 16 bits in place of floats.
    ``ort_format`` writes graphs in ONNX Runtime's own format.
    ``taps`` are hidden states that the target gives besides those that heads read (:mod:`edgespec.export.passes.tap_features`).
    """

    target: str
    output: Path
    draft: str | tuple[str, ...] | None = None
    medusa: str | None = None
    eagle: str | None = None
    weights: str = "int8"
    draft_weights: str | None = None
    block_size: int = 32
    symmetric: bool = False
    context: int | None = None
    max_width: int = 16
    force: bool = False
    revision: str | None = None
    draft_revision: str | None = None
    quiet: bool = False
    trust_remote_code: bool = False
    max_kl: float | None = None
    method: str | None = None
    calibration: Path | None = None
    target_size: int | None = None
    kv: tuple[str, ...] = ("float32",)
    profiles: tuple[str, ...] = ()
    npu_widths: tuple[int, ...] = NPU_WIDTHS
    npu_activations: str = "float"
    ort_format: bool = False
    taps: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("weights", "draft_weights"):
            value = getattr(self, name)
            if value is not None and value not in WEIGHT_TYPES:
                raise UsageError(f"--{name.replace('_', '-')}: {value!r} is unknown; choose one of {', '.join(WEIGHT_TYPES)}")
        if self.block_size not in (16, 32, 64, 128, 256):
            raise UsageError(f"--block-size: {self.block_size} is not one of 16, 32, 64, 128, 256")
        if self.symmetric and not {self.weights, self.draft_weights or self.weights} <= {"int4", "int8"}:
            raise UsageError("--symmetric: is for weights of int4 or int8; give --weights and --draft-weights accordingly, or leave it out")
        if self.context is not None and self.context < 2:
            raise UsageError(f"--context: {self.context} is too small; give at least 2 tokens")
        if not 2 <= self.max_width <= 1024:
            raise UsageError(f"--max-width: {self.max_width} is not between 2 and 1024")
        if self.max_kl is not None and not self.max_kl > 0:
            raise UsageError(f"--max-kl: {self.max_kl} is not a positive number of nats")
        if self.method is not None and self.method not in METHODS:
            raise UsageError(f"--method: {self.method!r} is unknown; choose one of {', '.join(METHODS)}")
        if self.target_size is not None and (self.weights != "mixed" or self.target_size < 1):
            raise UsageError("--target-size: needs --weights mixed and a positive number of bytes")
        if not self.kv or len(set(self.kv)) < len(self.kv) or not set(self.kv) <= set(KV_TYPES):
            raise UsageError(f"--kv: {','.join(self.kv)!r} is not one or several of {', '.join(KV_TYPES)} with commas between")
        if self.kv != ("float32",) and set(self.profiles) - {"cpu"}:
            raise UsageError(f"--kv: the graphs of --profile {self.profiles[-1]} have KV caches of their own; leave one of the two out")
        for profile in self.profiles:
            if profile not in PROFILES:
                raise UsageError(f"--profile: {profile!r} is unknown; choose one of {', '.join(PROFILES)}")
        widths = self.npu_widths
        if len(widths) < 3 or list(widths) != sorted(set(widths)) or not 1 <= widths[0] <= widths[-1] <= 1024:
            raise UsageError(f"--npu-widths: {widths} are not three or more ascending widths such as 1,5,64, the last one for prompts")
        if self.npu_activations not in NPU_ACTIVATIONS:
            raise UsageError(f"--npu-activations: {self.npu_activations!r} is unknown; choose one of {', '.join(NPU_ACTIVATIONS)}")
        if self.has_integer_graphs:
            if "npu" not in self.profiles:
                raise UsageError("--npu-activations int16: is for the graphs of --profile npu, which is missing")
            for weights in {self.weights, self.draft_weights or self.weights} - {"int8", "int4", "mixed"}:
                raise UsageError(f"--npu-activations int16: needs weights of int8, int4 or mixed, which {weights} are not")
        if self.draft_revision is not None and len([draft for draft in self.drafts if early_exit_layers(draft) is None]) != 1:
            raise UsageError("--draft-revision: needs one --draft that is on the Hub")
        for index, draft in enumerate(self.drafts):
            early_exit_layers(draft)
            if draft == SELF and self.draft_weights in (None, self.weights):
                raise UsageError(f"--draft self: give other --draft-weights than {self.weights}; a copy of the same size saves nothing")
            if draft in self.drafts[:index]:
                raise UsageError(f"--draft: {draft} is given twice")

    @property
    def drafts(self) -> tuple[str, ...]:
        return drafts_of(self.draft)

    @property
    def has_integer_graphs(self) -> bool:
        """Whether there will be graphs that compute with whole numbers."""
        return self.npu_activations == "int16"

    def method_for(self, weights: str) -> str:
        """How weights of this type are quantised."""
        return self.method or DEFAULT_METHODS.get(weights, "search")


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """``sizes`` are bytes on disk by file name; ``peak_rss_bytes`` is the process's own peak."""

    manifest: Manifest
    output: Path
    seconds: float
    peak_rss_bytes: int
    sizes: dict[str, int]


def drafts_of(draft: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """One draft, several or none as a tuple."""
    return () if draft is None else (draft,) if isinstance(draft, str) else draft


def early_exit_layers(draft: str) -> int | None:
    """N when ``draft`` reads ``layers:N``, else None."""
    if not draft.startswith(LAYERS_PREFIX):
        return None
    number = draft[len(LAYERS_PREFIX) :]
    if not number.isdecimal() or int(number) < 1:
        raise UsageError(f"--draft: {draft!r} needs a number of layers, for example layers:4")
    return int(number)
