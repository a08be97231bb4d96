"""Head norm and partial rotary embedding in plain torch. Legend: F rotated pairs of a head."""

import torch
from torch import Tensor

from m3_kernels.rms_norm.reference import normalise


def norm_rope(x_THD: Tensor, weight_HD: Tensor, cos_TF: Tensor, sin_TF: Tensor, *, eps: float) -> Tensor:
    """Norm each head over its dimensions by `1 + weight`, then rotate the pairs (i, i + F) of its first 2F dimensions.

    Shapes: weight_HD has one row a head, so queries, keys and index heads can go through one call.
    Returns: [T, H, D] in x's dtype; the norm and the rotation in float32, rounded once.
    """
    F = cos_TF.shape[-1]
    y = normalise(x_THD.float(), weight_HD.float(), eps)
    first, second = y[..., :F], y[..., F : 2 * F]
    cos, sin = cos_TF[:, None], sin_TF[:, None]
    rotated = [first * cos - second * sin, second * cos + first * sin]
    return torch.cat([*rotated, y[..., 2 * F :]], -1).to(x_THD.dtype)
