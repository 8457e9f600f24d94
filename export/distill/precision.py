"""The numbers that training computes with."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from edgespec.export.distill.config import AUTO, BFLOAT16

CAPABILITIES = ("amx_bf16", "avx512_bf16")


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Matrix products in bfloat16 where ``precision`` asks for it, or for "auto" where ``device`` has instructions for them."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == BFLOAT16 or (precision == AUTO and _has_bfloat16(device)))


def _has_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    known = getattr(torch.cpu, "get_capabilities", None)  # older versions of torch do not tell
    capabilities: Mapping[str, bool] = known() if known is not None else {}
    return any(capabilities.get(name) for name in CAPABILITIES)
