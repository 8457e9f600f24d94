"""From ``--weights`` and ``--method`` to a plan for every tensor, with what is quantised ahead of writing."""

from __future__ import annotations

import dataclasses

from tqdm import tqdm

from edgespec.errors import UsageError
from edgespec.export.checkpoint import Checkpoint
from edgespec.export.config import ExportConfig
from edgespec.export.corpus import CALIBRATION
from edgespec.export.quantise.blockwise import Quantised
from edgespec.export.quantise.calibrate import QuantisedStore, calibrated
from edgespec.export.recipe import Plan, Scheme
from edgespec.export.tokenizer import Tokenizer
from edgespec.manifest import Quantisation, TensorForm

BITS = {"int4": 4, "int8": 8}
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
        """The tensor as calibration made it, if in that scheme."""
        if self.store is None or name not in self.store or self.plan.scheme(name) != scheme:
            return None
        return self.store.get(name)

    @property
    def quantisation(self) -> Quantisation:
        """For the manifest."""
        tensors = {name: _form(scheme) for name, scheme in self.plan.exceptions}
        form = _form(self.plan.default)
        return Quantisation(self.method if self.plan.default or tensors else "none", form.bits, form.block_size, tensors or None)


def _form(scheme: Scheme | None) -> TensorForm:
    return TensorForm(scheme.bits, scheme.block) if scheme else TensorForm(32)


def choose(kind: str, config: ExportConfig, checkpoint: Checkpoint, tokenizer: Tokenizer, name: str) -> Choice:
    """Decide for weights of type ``kind``, and calibrate where the method asks for it.

    Args:
        kind: one of ``config.WEIGHT_TYPES``.
        config: the export.
        checkpoint: bound to its model.
        tokenizer: of the calibration text.
        name: of the model, for the progress bar.
    """
    method = config.method_for(kind)
    plan = Plan(Scheme(BITS[kind], config.block_size) if kind in BITS else None)
    if plan.default is None or method != "gptq":
        return Choice(plan, method, checkpoint)
    ids = calibration_ids(config, tokenizer)
    model_config = checkpoint.config_copy()
    total = model_config.get_text_config().num_hidden_layers
    with tqdm(total=total, desc=f"{name}: calibrating", unit="layer", disable=True if config.quiet else None, leave=False) as bar:
        store = calibrated(checkpoint, model_config, ids, plan, lambda: bar.update() and None)
    return Choice(plan, method, checkpoint, store)


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
