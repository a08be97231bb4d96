"""Gemma's RMSNorm in plain torch. Legend: T tokens, C hidden size."""

import torch
from torch import Tensor
from torch.nn import functional as F


def rms_norm(x_TC: Tensor, residual_TC: Tensor | None, weight_C: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """Add x to the residual stream and norm the sum by `1 + weight`.

    Returns: (normed, sum), both [T, C] in x's dtype; without a residual the sum is x itself. Float32 inside, rounded
    once: the norm reads the sum as it was rounded to x's dtype.
    """
    total_TC = x_TC if residual_TC is None else x_TC + residual_TC
    return normalise(total_TC.float(), weight_C.float(), eps).to(x_TC.dtype), total_TC


def normalise(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x over its root mean square along the last axis, times `1 + weight`; float32 in and out."""
    y = F.rms_norm(x, x.shape[-1:], eps=eps)
    return torch.addcmul(y, y, weight)
