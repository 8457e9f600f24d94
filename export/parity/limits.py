"""What is accepted, and the error when it is exceeded."""

from __future__ import annotations

import dataclasses

from edgespec.errors import ExportError
from edgespec.export.parity.graph import GraphCheck
from edgespec.manifest import Fidelity


@dataclasses.dataclass(frozen=True)
class Limits:
    """Largest mean KL divergence in nats, and largest rms error of the logits over their standard deviation.

    A model with random weights has nearly equal probabilities, hence no KL to speak of: there the second one counts.
    """

    kl: float
    relative_rms: float

    def or_wider(self, other: Limits) -> Limits:
        """What either of the two accepts."""
        return Limits(max(self.kl, other.kl), max(self.relative_rms, other.relative_rms))


FAULT = "this is a fault of the translation, please report it with the model's name"
# Of the graph against torch on the same weights. Measured over eight architectures of the table and SmolLM2-135M at 4 and 8 bits:
# at most 2e-7 and 4e-6 in float arithmetic, 0.013 and 0.10 with activations rounded to 8 bits.
EXACT = Limits(1e-5, 2e-4)
ROUNDED = Limits(0.1, 0.3)
HALF = Limits(1e-3, 2e-2)  # in 16-bit floats
# Of the bundle against the original, by type of weights: what a user would not call the same model any more. Measured on
# SmolLM2-135M (docs/quantisation.md); small models lose more than large ones. The second limits are for models with random weights,
# some of which (Gemma-4's inputs per layer) magnify any change: 1.0 is between 0.78, their worst at 4 bits, and 1.41, unrelated logits.
DIVERGENCE = {
    "fp32": Limits(1e-4, 2e-3),
    "int8": Limits(0.05, 0.15),
    "keep": Limits(0.05, 0.15),
    "int4": Limits(0.8, 1.0),
    "mixed": Limits(0.8, 1.0),
}
# What a KV cache of fewer bits may add, measured there as well.
KV_DIVERGENCE = {"float32": Limits(0.0, 0.0), "int8": Limits(0.05, 0.15), "int4": Limits(0.8, 1.0)}


def require_graph(name: str, check: GraphCheck) -> None:
    """Raise ExportError when the graph computes something else than the original."""
    for found, limits, arithmetic in (
        (check.exact, ROUNDED if check.always_rounds else EXACT, "float"),
        (check.rounded, EXACT if check.rounded is check.exact else ROUNDED, "8-bit"),
    ):
        if not within(found, limits):
            raise ExportError(
                f"{name}: its graph does not compute what the original does: on the same weights, in {arithmetic} arithmetic, its logits "
                f"are off by {found.relative_rms:.2g} of their spread (at most {limits.relative_rms:g}) and by a KL of {found.kl:.2g} "
                f"(at most {limits.kl:g}); {FAULT}"
            )


def require(name: str, fidelity: Fidelity, weights: str, max_kl: float | None, kv_dtype: str = "float32") -> None:
    """Raise ExportError when the bundle diverges more from the original than is accepted for ``weights`` and ``kv_dtype``, or more than
    ``max_kl``."""
    limits = DIVERGENCE[weights].or_wider(KV_DIVERGENCE[kv_dtype])
    stored = weights if kv_dtype == "float32" else f"{weights} with a KV cache of {kv_dtype}"
    if max_kl is not None:
        limits = Limits(max_kl, float("inf"))
    if not fidelity.kl <= limits.kl:
        raise ExportError(
            f"{name}: differs from the original by a KL of {fidelity.kl:.4f} nats where at most {limits.kl:g} is accepted for {stored}; "
            f"{'give a larger --target-size' if weights == 'mixed' else 'choose more bits or a smaller block'}, or raise --max-kl"
        )
    if not fidelity.relative_rms <= limits.relative_rms:
        raise ExportError(
            f"{name}: its logits are off by {fidelity.relative_rms:.3f} of their spread where at most {limits.relative_rms:g} is accepted "
            f"for {stored}; choose more bits or a smaller block, or name a --max-kl"
        )


def within(found: Fidelity, limits: Limits) -> bool:
    """False for distances that are no numbers, too."""
    return found.kl <= limits.kl and found.relative_rms <= limits.relative_rms
