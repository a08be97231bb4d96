"""Paged causal attention in plain torch."""

import torch
from torch import Tensor
from torch.nn import functional as F

from m3_kernels.batch import AttentionBatch, sequence_pages


def dense_attention(q_THD: Tensor, k_PSGD: Tensor, v_PSGD: Tensor, batch: AttentionBatch, *, scale: float) -> Tensor:
    """Attend each new token to every key up to its own position; new tokens are already in the cache.

    Shapes: query head h reads key head h // (H / G).   Units: scale multiplies the scores.
    Returns: [T, H, D] in q's dtype, summed in float32.   Errors: ValueError if H is not a multiple of G.
    """
    H, G = q_THD.shape[1], k_PSGD.shape[2]
    if H % G:
        raise ValueError(f"{H} query heads cannot share {G} key heads evenly")
    out = torch.empty_like(q_THD)
    if batch.decoding is not None:
        plan = batch.decoding
        rows_THD = plan.take(q_THD).float() * scale
        T, _, D = rows_THD.shape
        q_GTMD = rows_THD.view(T, G, H // G, D).permute(1, 0, 2, 3)
        p_GTMC = plan.scores(q_GTMD, k_PSGD).softmax(-1)
        attended = plan.values(p_GTMC, v_PSGD).permute(1, 0, 2, 3).reshape(T, H, D).to(out.dtype)
        if plan.in_order and len(out) == T:
            return attended
        plan.put(out, attended)
    for b in batch.prefilling:
        first, count, length = batch.first_rows[b], batch.query_counts[b], batch.lengths[b]
        rows = slice(first, first + count)
        visible = None
        if count < length:
            visible = torch.arange(length, device=q_THD.device) <= batch.positions_T[rows, None]
        attended = F.scaled_dot_product_attention(
            q_THD[rows].float().transpose(0, 1)[None],
            sequence_pages(k_PSGD, batch.pages[b], length).float().transpose(0, 1)[None],
            sequence_pages(v_PSGD, batch.pages[b], length).float().transpose(0, 1)[None],
            attn_mask=visible,
            is_causal=visible is None,
            scale=scale,
            enable_gqa=True,
        )
        out[rows] = attended[0].transpose(0, 1).to(out.dtype)
    return out
