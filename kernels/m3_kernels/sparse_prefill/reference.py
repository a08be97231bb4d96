"""Sparse attention of many queries in plain torch: dense attention under the mask that the block lists spell out."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from m3_kernels.batch import AttentionBatch, sequence_pages
from m3_kernels.shared_pages import SharedPages

CHUNK = 128
"""Queries attended at a time: bounds the memory of the mask."""


def sparse_prefill(
    q_THD: Tensor,
    k_PSGD: Tensor,
    v_PSGD: Tensor,
    blocks_TGK: Tensor,
    batch: AttentionBatch,
    *,
    scale: float,
    max_product: float = math.inf,
) -> Tensor:
    """Attend each new token to the visible keys of its chosen blocks; new tokens are already in the cache.

    Shapes: query head h reads key head h // (H / G); blocks_TGK int32 holds block numbers within the sequence in any
    order, -1 after the valid ones, the row's own block among them.
    Units: scale multiplies the scores; max_product is what no product of a query and a key exceeds, if that is known.
    Returns: [T, H, D] in q's dtype, summed in float32.
    Errors: ValueError if H is not a multiple of G.   Source: MSA paper, section on prefill.
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


def attend_decoding(
    out: Tensor,
    q_THD: Tensor,
    k_PSGD: Tensor,
    v_PSGD: Tensor,
    blocks_TGK: Tensor,
    batch: AttentionBatch,
    plan: SharedPages,
    *,
    scale: float,
) -> None:
    """Write the rows of all sequences that bring few tokens into out; other rows stay as they are.

    All keys are scored and the unchosen hidden. On a CPU that beats gathering the chosen blocks once a row, because
    forked rows share most pages.
    """
    rows_THD = plan.take(q_THD).float() * scale
    T, H, D = rows_THD.shape
    G = k_PSGD.shape[2]
    scores_GTMC = plan.scores(rows_THD.view(T, G, H // G, D).permute(1, 0, 2, 3), k_PSGD)
    num_blocks = batch.page_table_BN.shape[1]
    blocks = plan.take(blocks_TGK).long()
    chosen_TGN = blocks.new_zeros(T, G, num_blocks + 1, dtype=torch.bool)
    chosen_TGN.scatter_(2, torch.where(blocks < 0, num_blocks, blocks), True)
    chosen_TGN[..., num_blocks] = False
    columns_TC = plan.column_blocks(num_blocks)
    kept = chosen_TGN.gather(2, columns_TC[:, None].expand(T, G, -1)).repeat_interleave(batch.page_size, -1)
    kept_GT1C = kept[..., : scores_GTMC.shape[-1]].transpose(0, 1)[:, :, None]
    p_GTMC = scores_GTMC.masked_fill_(~kept_GT1C, float("-inf")).softmax(-1)
    plan.put(out, plan.values(p_GTMC, v_PSGD).permute(1, 0, 2, 3).reshape(T, H, D).to(out.dtype))
