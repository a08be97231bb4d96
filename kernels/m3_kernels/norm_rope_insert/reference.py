"""Head norm, partial rotary embedding and cache insertion in plain torch.

Legend: X channels of the fused projection, H query heads, G key heads, R index heads, F rotated pairs of a head.
"""

import torch
from torch import Tensor

from m3_kernels.rms_norm.reference import normalise


def norm_rope_insert(
    projected_TX: Tensor,
    norms: tuple[Tensor, ...],
    cos_TF: Tensor,
    sin_TF: Tensor,
    slots_T: Tensor,
    k_PSGD: Tensor,
    v_PSGD: Tensor,
    index_k_PSD: Tensor | None,
    *,
    num_heads: int,
    eps: float,
) -> tuple[Tensor, Tensor | None]:
    """Norm each query, key and index head by `1 + weight`, rotate its first 2F dimensions, and cache what is cached.

    Shapes: projected_TX holds q, k, index q, index k and v heads, in this order; the index heads only with index_k_PSD.
    `norms` have a row for each head but those of v: one matrix, or a second one for index heads of another size.
    slots_T int64, no slot twice. Afterwards slot `page * S + offset` holds the token's key, value and index key.
    Returns: (q [T, H, D], index q [T, R, D] or None) in the projection's dtype; float32 inside, rounded once.
    Errors: ValueError if the channels do not fit the heads; it would cache garbage.
    """
    T, X = projected_TX.shape
    G, D = k_PSGD.shape[2:]
    check_channels(X, norms, G, D, num_heads, index_k_PSD is not None)
    groups, first = [], 0
    for weight_HD in norms:
        heads, size = weight_HD.shape
        x_THD = projected_TX[:, first : first + heads * size].view(-1, heads, size)
        groups.append(norm_rope(x_THD, weight_HD, cos_TF, sin_TF, eps=eps))
        first += heads * size
    q_THD, k_TGD = groups[0][:, :num_heads], groups[0][:, num_heads : num_heads + G]
    index_TRD = groups[1] if len(groups) == 2 else groups[0][:, num_heads + G :]
    k_PSGD.view(-1, G, D).index_copy_(0, slots_T, k_TGD.to(k_PSGD.dtype))
    v_PSGD.view(-1, G, D).index_copy_(0, slots_T, projected_TX[:, first:].view(T, G, D).to(v_PSGD.dtype))
    if index_k_PSD is None:
        return q_THD, None
    index_k_PSD.view(-1, index_k_PSD.shape[2]).index_copy_(0, slots_T, index_TRD[:, -1].to(index_k_PSD.dtype))
    return q_THD, index_TRD[:, :-1]


def norm_rope(x_THD: Tensor, weight_HD: Tensor, cos_TF: Tensor, sin_TF: Tensor, *, eps: float) -> Tensor:
    """Norm each head over its dimensions by `1 + weight`, then rotate the pairs (i, i + F) of its first 2F dimensions.

    Returns: [T, H, D] in x's dtype; the norm and the rotation in float32, rounded once.
    """
    F = cos_TF.shape[-1]
    y = normalise(x_THD.float(), weight_HD.float(), eps)
    cos, sin = cos_TF[:, None], sin_TF[:, None]
    first, second = y[..., :F], y[..., F : 2 * F]
    rotated = torch.addcmul(first * cos, second, sin, value=-1)
    second.mul_(cos).addcmul_(first, sin)
    first.copy_(rotated)
    return y.to(x_THD.dtype)


def check_channels(X: int, norms: tuple[Tensor, ...], G: int, D: int, num_heads: int, has_index: bool) -> None:
    """Errors: ValueError if a projection of X channels does not hold exactly the heads that the norms name."""
    rows = sum(len(norm) for norm in norms)
    index_rows = rows - num_heads - G
    expected = sum(norm.numel() for norm in norms) + G * D
    if expected != X or (index_rows < 2 if has_index else index_rows != 0):
        raise ValueError(
            f"{num_heads} query, {G} key and {index_rows} index heads of {expected} channels do not fit a projection "
            f"of {X} channels {'with' if has_index else 'without'} an index cache"
        )
