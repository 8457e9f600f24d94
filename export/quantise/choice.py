"""From ``--weights`` and ``--method`` to a plan for every tensor, with what is quantised ahead of writing."""

from __future__ import annotations

import collections
import dataclasses
import sys
from collections.abc import Callable, Sequence

from tqdm import tqdm

from edgespec.errors import UsageError
from edgespec.export.checkpoint import Checkpoint
from edgespec.export.config import ExportConfig
from edgespec.export.corpus import CALIBRATION
from edgespec.export.quantise.blockwise import Quantised
from edgespec.export.quantise.calibrate import QuantisedStore, batched, calibrated
from edgespec.export.quantise.mixed import allot, candidates, describe
from edgespec.export.quantise.sensitivity import Sensitivity, sensitivities
from edgespec.export.recipe import Plan, Scheme
from edgespec.export.tokenizer import Tokenizer
from edgespec.manifest import Quantisation, TensorForm

BITS = {"int4": 4, "int8": 8}
REFIT = Scheme(8, 32)  # for stored forms that no kernel knows: 16 steps for one of theirs at 4 bits
MAX_CALIBRATION_TOKENS = 4096
MAX_TEXT_BYTES = 2**20
MEASURED_TOKENS, MEASURED_SEQUENCE = 512, 32  # many short texts: each is one sample of a square
# Sensitivity is measured with searched scales. What of its KL is left by each method, and how much of --max-kl the estimate may use
# (docs/quantisation.md).
LEFT = {"gptq": 0.5, "search": 1.0, "rtn": 1.5}
MARGIN = 0.8


@dataclasses.dataclass(frozen=True)
class Choice:
    """How the weights of one model are quantised. ``store`` holds what calibration has quantised."""

    plan: Plan
    method: str
    checkpoint: Checkpoint
    store: QuantisedStore | None = None

    def ready(self, name: str, scheme: Scheme) -> Quantised | None:
        """The tensor as calibration made it, or as the checkpoint stores it, if in that scheme."""
        if self.store is not None and (name, scheme) in self.store:
            return self.store.get(name, scheme)
        stored = self.checkpoint.quantised(name)
        return stored if stored is not None and stored.scheme == scheme else None

    @property
    def quantisation(self) -> Quantisation:
        """For the manifest."""
        tensors = {name: _form(scheme) for name, scheme in self.plan.exceptions}
        found = quantisation_of(self.plan.default, self.method)
        return dataclasses.replace(found, method=self.method, tensors=tensors) if tensors else found


def quantisation_of(scheme: Scheme | None, method: str) -> Quantisation:
    """For the manifest, where all weights have one scheme."""
    return Quantisation(method, scheme.bits, scheme.block, scheme.symmetric) if scheme else Quantisation("none", 32)


def _form(scheme: Scheme | None) -> TensorForm:
    return TensorForm(scheme.bits, scheme.block) if scheme else TensorForm(32)


def choose(kind: str, config: ExportConfig, checkpoint: Checkpoint, matrices: Sequence[str], tokenizer: Tokenizer, name: str) -> Choice:
    """Decide for weights of type ``kind``, and calibrate where the method asks for it.

    Args:
        kind: one of ``config.WEIGHT_TYPES``.
        config: the export.
        checkpoint: bound to its model.
        matrices: names of the tensors that can be quantised.
        tokenizer: of the calibration text.
        name: of the model, for the progress bar.
    """
    method = config.method_for(kind)
    if kind == "keep":
        return Choice(kept(checkpoint, matrices), "keep", checkpoint)
    plan = Plan(Scheme(BITS[kind], config.block_size, config.symmetric) if kind in BITS else None)
    if kind != "mixed" and (plan.default is None or method != "gptq"):
        return Choice(plan, method, checkpoint)
    ids = calibration_ids(config, tokenizer)
    model_config = checkpoint.config_copy()
    total = model_config.get_text_config().num_hidden_layers
    if kind == "mixed":
        with tqdm(total=total, desc=f"{name}: measuring", unit="layer", disable=True if config.quiet else None, leave=False) as bar:
            found = _measured(checkpoint, ids, config, matrices, lambda: bar.update() and None)
        allotment = allot(found, config.target_size, None if config.max_kl is None else MARGIN * config.max_kl)
        plan = allotment.plan
        if not config.quiet:
            print(describe(allotment), file=sys.stderr)
        if method != "gptq":
            return Choice(plan, method, checkpoint)
    with tqdm(total=total, desc=f"{name}: calibrating", unit="layer", disable=True if config.quiet else None, leave=False) as bar:
        store = calibrated(checkpoint, model_config, ids, plan, config.has_integer_graphs, lambda: bar.update() and None)
    return Choice(plan, method, checkpoint, store)


def _measured(
    checkpoint: Checkpoint, ids: list[int], config: ExportConfig, matrices: Sequence[str], on_layer: Callable[[], None]
) -> list[Sensitivity]:
    """How much KL each scheme would cost each group of ``matrices``, with the method of ``config``."""
    model_config = checkpoint.config_copy()
    limit = getattr(model_config.get_text_config(), "max_position_embeddings", None) or MEASURED_SEQUENCE
    # Spread over all of the text, since its parts differ: prose, code, languages.
    batch = batched(ids, min(MEASURED_SEQUENCE, limit))
    batch = batch[:: max(1, batch.numel() // MEASURED_TOKENS)]
    found = sensitivities(checkpoint, model_config, batch, candidates(config.block_size), on_layer)
    left = LEFT[config.method_for("mixed")]
    return [
        dataclasses.replace(group, harm={scheme: left * kl if scheme.bits == 4 else kl for scheme, kl in group.harm.items()})
        for group in found
        if set(group.names) <= set(matrices)
    ]


def kept(checkpoint: Checkpoint, matrices: Sequence[str]) -> Plan:
    """Every matrix in the form that holds it exactly, and what has no such form at 8 bits.

    Raises:
        UsageError: the checkpoint has float weights.
    """
    found = {name: quantised.scheme for name in matrices if (quantised := checkpoint.quantised(name)) is not None}
    if not found and not checkpoint.is_quantised:
        raise UsageError("--weights keep: the checkpoint has float weights; choose int8, int4 or mixed")
    schemes = {name: found.get(name, REFIT) for name in matrices}
    default = collections.Counter(schemes.values()).most_common(1)[0][0]
    return Plan(default, tuple((name, scheme) for name, scheme in schemes.items() if scheme != default))


def calibration_ids(config: ExportConfig, tokenizer: Tokenizer) -> list[int]:
    """Tokens of the text that calibration runs on: the user's file, or the project's text."""
    if config.calibration is None:
        texts = list(CALIBRATION)
    else:
        try:
            with config.calibration.open(encoding="utf-8") as file:
                texts = [file.read(MAX_TEXT_BYTES)]
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--calibration: {config.calibration} cannot be read as text: {error}") from error
    ids = [token for text in texts for token in tokenizer.encode(text)][:MAX_CALIBRATION_TOKENS]
    if len(ids) < 16:
        raise UsageError(f"--calibration: {config.calibration} has only {len(ids)} tokens; give a few pages of text")
    return ids
