"""From ``--weights`` and ``--method`` to a plan for every tensor, with what is quantised ahead of writing."""

from __future__ import annotations

import collections
import dataclasses
import sys
from collections.abc import Sequence

from tqdm import tqdm

from edgespec.errors import UsageError
from edgespec.export.checkpoint import Checkpoint
from edgespec.export.config import ExportConfig
from edgespec.export.corpus import CALIBRATION
from edgespec.export.quantise.blockwise import Quantised
from edgespec.export.quantise.calibrate import QuantisedStore, calibrated
from edgespec.export.quantise.mixed import allot, describe, sensitivities
from edgespec.export.recipe import Plan, Scheme
from edgespec.export.tokenizer import Tokenizer
from edgespec.manifest import Quantisation, TensorForm

BITS = {"int4": 4, "int8": 8}
REFIT = Scheme(8, 32)  # for stored forms that no kernel knows: 16 steps for one of theirs at 4 bits
MAX_CALIBRATION_TOKENS = 4096
MAX_TEXT_BYTES = 2**20


@dataclasses.dataclass(frozen=True)
class Choice:
    """How the weights of one model are quantised. ``store`` holds what calibration has quantised."""

    plan: Plan
    method: str
    checkpoint: Checkpoint
    store: QuantisedStore | None = None

    def ready(self, name: str, scheme: Scheme) -> Quantised | None:
        """The tensor as calibration made it, or as the checkpoint stores it, if in that scheme."""
        if self.store is not None and name in self.store and self.plan.scheme(name) == scheme:
            return self.store.get(name)
        stored = self.checkpoint.quantised(name)
        return stored if stored is not None and stored.scheme == scheme else None

    @property
    def quantisation(self) -> Quantisation:
        """For the manifest."""
        tensors = {name: _form(scheme) for name, scheme in self.plan.exceptions}
        form = _form(self.plan.default)
        return Quantisation(self.method if self.plan.default or tensors else "none", form.bits, form.block_size, tensors or None)


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
    plan = Plan(Scheme(BITS[kind], config.block_size) if kind in BITS else None)
    if kind != "mixed" and (plan.default is None or method != "gptq"):
        return Choice(plan, method, checkpoint)
    ids = calibration_ids(config, tokenizer)
    model_config = checkpoint.config_copy()
    total = model_config.get_text_config().num_hidden_layers
    if kind == "mixed":
        with tqdm(total=total, desc=f"{name}: measuring", unit="layer", disable=True if config.quiet else None, leave=False) as bar:
            found = sensitivities(checkpoint, checkpoint.config_copy(), ids, config.block_size, lambda: bar.update() and None)
        plan = allot(found, config.block_size, config.target_size)
        if not config.quiet:
            print(describe(found, plan), file=sys.stderr)
        if method != "gptq":
            return Choice(plan, method, checkpoint)
    with tqdm(total=total, desc=f"{name}: calibrating", unit="layer", disable=True if config.quiet else None, leave=False) as bar:
        store = calibrated(checkpoint, model_config, ids, plan, lambda: bar.update() and None)
    return Choice(plan, method, checkpoint, store)


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
