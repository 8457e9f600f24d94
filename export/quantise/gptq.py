"""GPTQ: quantise column by column, and let the columns that are left make up for each one's error.

After Frantar et al. 2023 (GPTQ, arXiv 2210.17323). With the second moment of the inputs H = X^T X the error that counts is
tr(D H D^T) for D = W' - W, not that of D itself. Columns are taken in their natural order: the kernels know no other.
The scale and zero point of a block are searched when its first column is reached, weighing the block's columns by what
their errors will cost then (1 / U_jj^2, U the upper Cholesky factor of H^-1).
"""

from __future__ import annotations

import torch

from edgespec.export.quantise.blockwise import Quantised, full_range
from edgespec.export.quantise.parallel import by_rows
from edgespec.export.recipe import Scheme

DAMPING = 0.01  # added to the diagonal of H, in parts of its mean, as in the paper
SHRINK = {4: (1.0, 0.92, 0.84, 0.76, 0.68), 8: (1.0,)}
ROWS_AT_ONCE = 4096


def inverse_factor(hessian: torch.Tensor, damping: float = DAMPING) -> torch.Tensor:
    """The upper Cholesky factor of the inverse of ``hessian`` ``[K, K]``, damped until it has one."""
    h = hessian.clone()
    diagonal = h.diagonal()
    diagonal[diagonal == 0] = 1.0  # an input that is always 0: any weight will do
    mean = diagonal.mean()
    for _ in range(8):
        diagonal += damping * mean
        lower, failed = torch.linalg.cholesky_ex(h)
        if not failed:
            upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
            if not failed:
                result: torch.Tensor = upper
                return result
        damping *= 4
    return torch.eye(len(h))


def gptq(weight: torch.Tensor, scheme: Scheme, factor: torch.Tensor) -> Quantised:
    """Quantise ``weight`` float32 ``[N, K]``; ``factor`` is :func:`inverse_factor` of its inputs' second moment."""
    padding = -weight.shape[1] % scheme.block
    if padding:  # inputs that do not exist
        grown = torch.eye(len(factor) + padding)
        grown[: len(factor), : len(factor)] = factor
        factor = grown
    parts = by_rows(lambda chunk: _rows(chunk, scheme, factor), weight, ROWS_AT_ONCE)
    codes, scales, zeros = (torch.cat([part[index] for part in parts]) for index in range(3))
    return Quantised.of(scheme, weight.shape[1], codes, scales, zeros)


def _rows(weight: torch.Tensor, scheme: Scheme, factor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, levels, block = len(weight), 2**scheme.bits - 1, scheme.block
    w = torch.zeros(len(factor), rows)  # transposed: a column of the matrix is a row in memory
    w[: weight.shape[1]] = weight.T
    codes = torch.empty(len(factor), rows, dtype=torch.uint8)
    scales, zeros = torch.empty(len(factor) // block, rows), torch.empty(len(factor) // block, rows)
    for index in range(len(scales)):
        start, end = index * block, (index + 1) * block
        inside, upper = w[start:end], factor[start:end, start:end]
        scale, zero = _fit(inside, (1 / upper.diagonal() ** 2)[:, None], levels, scheme)
        inverse = 1 / scale
        errors = torch.empty(block, rows)
        for j in range(block):
            column = inside[j]
            code = (column * inverse).add_(zero).round_().clamp_(0, levels)
            codes[start + j] = code
            error = torch.sub(column, code.sub_(zero).mul_(scale), out=errors[j]).div_(upper[j, j])
            if j + 1 < block:
                inside[j + 1 :].addr_(upper[j, j + 1 :], error, alpha=-1)
        if end < len(w):
            w[end:].addmm_(factor[start:end, end:].T, errors, alpha=-1)
        scales[index], zeros[index] = scale, zero
    return codes.T.reshape(rows, -1, block), scales.T, zeros.T


def _fit(w: torch.Tensor, importance: torch.Tensor, levels: int, scheme: Scheme) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and zero ``[N]`` of a block ``[block, N]``; ``importance`` ``[block, 1]`` weighs the squared errors."""
    full, middle = full_range(w, scheme, 0)
    best: tuple[torch.Tensor, ...] | None = None
    for shrink in SHRINK[scheme.bits]:
        scale = full * shrink
        zero = (levels / 2 - middle / scale).round_().clamp_(0, levels)
        centred = (w / scale).add_(zero).round_().clamp_(0, levels).sub_(zero)
        weighed = centred * importance
        power, product = (weighed * centred).sum(0, keepdim=True), (weighed * w).sum(0, keepdim=True)
        fitted = product / power.clamp(min=torch.finfo(torch.float32).tiny)
        scale = torch.where((power > 0) & (fitted > 0), fitted, scale)
        error = ((w / scale).add_(zero).round_().clamp_(0, levels).sub_(zero).mul_(scale).sub_(w).square_() * importance).sum(
            0, keepdim=True
        )
        candidate = (scale, zero, error)
        if best is None:
            best = candidate
        else:
            chosen = error < best[2]
            best = tuple(torch.where(chosen, new, old) for new, old in zip(candidate, best, strict=True))
    assert best is not None
    return best[0][0], best[1][0]
