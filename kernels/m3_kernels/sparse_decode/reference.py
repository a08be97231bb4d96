"""Sparse attention of few queries in plain torch."""

import torch
from torch import Tensor

from m3_kernels.batch import DECODE_QUERIES, AttentionBatch
from m3_kernels.shared_pages import SharedPages


def sparse_decode(
    q_THD: Tensor, k_PSGD: Tensor, v_PSGD: Tensor, blocks_TGK: Tensor, batch: AttentionBatch, *, scale: float
) -> Tensor:
    """Attend each new token to the visible keys of its chosen blocks; new tokens are already in the cache.

    Shapes: at most DECODE_QUERIES new tokens a sequence; blocks_TGK as for sparse_prefill.
    Units: scale multiplies the scores.   Returns: [T, H, D] in q's dtype, summed in float32.
    Errors: ValueError if H is not a multiple of G or a sequence brings too many tokens.
    Source: MSA paper, section on decoding.

    All keys are scored and the unchosen hidden. On a CPU that beats gathering the chosen blocks once a row, because
    forked rows share most pages; a kernel reads the chosen pages only.
    """
    H, G = q_THD.shape[1], k_PSGD.shape[2]
    if H % G:
        raise ValueError(f"{H} query heads cannot share {G} key heads evenly")
    if batch.max_queries > DECODE_QUERIES:
        raise ValueError(f"sparse_decode takes {DECODE_QUERIES} new tokens a sequence, got {batch.max_queries}")
    out = torch.empty_like(q_THD)
    if batch.decoding is not None:
        attend_decoding(out, q_THD, k_PSGD, v_PSGD, blocks_TGK, batch, batch.decoding, scale=scale)
    return out


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
    """Write the rows of all sequences that bring few tokens into out; other rows stay as they are."""
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
