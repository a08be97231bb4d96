"""What the text decoder and the eyes share in training: rotation, and attention inside the parts of a pack.

Letters in names: T tokens or patches, D head size, R rotated pairs, H query heads, G key/value heads.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def rotate(x_THD: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
    """Rotary embedding on the first 2R dimensions, pairs (i, i + R); the rest passes through."""
    half = cos_TR.shape[-1]
    a, b, rest = x_THD[..., :half], x_THD[..., half : 2 * half], x_THD[..., 2 * half :]
    cos, sin = cos_TR[:, None], sin_TR[:, None]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)


def attention(
    q_THD: Tensor, k_TGD: Tensor, v_TGD: Tensor, starts: Tensor, longest: int, *, causal: bool = True
) -> Tensor:
    """Attention inside each document or picture of a pack; `starts` holds the cumulative lengths, int32."""
    if q_THD.is_cuda:
        out: Tensor = torch.ops.aten._flash_attention_forward(
            q_THD, k_TGD, v_TGD, starts, starts, longest, longest, 0.0, causal, False, scale=q_THD.shape[-1] ** -0.5
        )[0]
        return out
    pieces = []
    for begin, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        q, k, v = (x[begin:end].transpose(0, 1)[None] for x in (q_THD, k_TGD, v_TGD))
        pieces.append(F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)[0].transpose(0, 1))
    return torch.cat(pieces)
