"""Sparse attention of many queries in plain torch: dense attention under the mask that the block lists spell out."""

import torch
from torch import Tensor
from torch.nn import functional as F

from m3_kernels.batch import AttentionBatch, sequence_pages
from m3_kernels.sparse_decode.reference import attend_decoding

CHUNK = 128
"""Queries attended at a time: bounds the memory of the mask."""


def sparse_prefill(
    q_THD: Tensor, k_PSGD: Tensor, v_PSGD: Tensor, blocks_TGK: Tensor, batch: AttentionBatch, *, scale: float
) -> Tensor:
    """Attend each new token to the visible keys of its chosen blocks; new tokens are already in the cache.

    Shapes: query head h reads key head h // (H / G); blocks_TGK int32 holds block numbers within the sequence in any
    order, -1 after the valid ones, the row's own block among them.
    Units: scale multiplies the scores.   Returns: [T, H, D] in q's dtype, summed in float32.
    Errors: ValueError if H is not a multiple of G.   Source: MSA paper, section on prefill.
    Sequences that bring few tokens are attended together, as sparse_decode does.
    """
    H, G = q_THD.shape[1], k_PSGD.shape[2]
    if H % G:
        raise ValueError(f"{H} query heads cannot share {G} key heads evenly")
    out = torch.empty_like(q_THD)
    if batch.decoding is not None:
        attend_decoding(out, q_THD, k_PSGD, v_PSGD, blocks_TGK, batch, batch.decoding, scale=scale)
    for b in batch.prefilling:
        first, count, length = batch.first_rows[b], batch.query_counts[b], batch.lengths[b]
        k_GLD = sequence_pages(k_PSGD, batch.pages[b], length).float().transpose(0, 1)
        v_GLD = sequence_pages(v_PSGD, batch.pages[b], length).float().transpose(0, 1)
        for low in range(first, first + count, CHUNK):
            rows = slice(low, min(low + CHUNK, first + count))
            end = length - (first + count - rows.stop)
            visible = visible_keys(blocks_TGK[rows], batch.positions_T[rows], end, batch.page_size)
            attended = F.scaled_dot_product_attention(
                q_THD[rows].float().transpose(0, 1)[None],
                k_GLD[None, :, :end],
                v_GLD[None, :, :end],
                attn_mask=visible.transpose(0, 1).repeat_interleave(H // G, 0)[None],
                scale=scale,
                enable_gqa=True,
            )
            out[rows] = attended[0].transpose(0, 1).to(out.dtype)
    return out


def visible_keys(blocks_TGK: Tensor, positions_T: Tensor, num_keys: int, block_size: int) -> Tensor:
    """True where a key lies in a chosen block and not behind the query: bool [T, G, num_keys]."""
    num_blocks = -(-num_keys // block_size)
    chosen = blocks_TGK.new_zeros(*blocks_TGK.shape[:2], num_blocks + 1, dtype=torch.bool)
    chosen.scatter_(2, torch.where(blocks_TGK < 0, num_blocks, blocks_TGK).long(), True)
    in_block = chosen[..., :num_blocks].repeat_interleave(block_size, -1)[..., :num_keys]
    return in_block & (torch.arange(num_keys, device=positions_T.device) <= positions_T[:, None, None])
