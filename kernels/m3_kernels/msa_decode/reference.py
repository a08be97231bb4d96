"""Attention of a few new tokens in plain torch: its steps one after the other."""

from torch import Tensor

from m3_kernels.batch import DECODE_QUERIES, AttentionBatch
from m3_kernels.block_topk.reference import block_topk
from m3_kernels.index_scores.reference import index_scores
from m3_kernels.sparse_prefill.reference import sparse_prefill


def msa_decode(
    q_THD: Tensor,
    index_q_TGD: Tensor,
    index_k_PSD: Tensor,
    k_PSGD: Tensor,
    v_PSGD: Tensor,
    batch: AttentionBatch,
    *,
    scale: float,
    top_k: int,
    init_blocks: int = 0,
    local_blocks: int = 1,
) -> Tensor:
    """Score all blocks by the index branch, choose top_k of them for each row and key head, and attend to those.

    Shapes: at most DECODE_QUERIES new tokens a sequence, which are already in the caches; one index head a key head; a
    block is a page.   Units: scale multiplies the attention's scores.
    Returns: [T, H, D] in q's dtype, summed in float32.
    Errors: ValueError if a sequence brings too many tokens, heads do not fit, or more blocks are forced than chosen.
    Source: MSA paper, sections on block selection and decoding.
    """
    check_decode(q_THD, index_q_TGD, k_PSGD, batch)
    blocks_TGK = block_topk(
        index_scores(index_q_TGD, index_k_PSD, batch),
        batch.positions_T,
        top_k=top_k,
        block_size=batch.page_size,
        init_blocks=init_blocks,
        local_blocks=local_blocks,
    )
    return sparse_prefill(q_THD, k_PSGD, v_PSGD, blocks_TGK, batch, scale=scale)


def check_decode(q_THD: Tensor, index_q_TGD: Tensor, k_PSGD: Tensor, batch: AttentionBatch) -> None:
    """Errors: as msa_decode's."""
    wanted = len(q_THD), k_PSGD.shape[2]
    if index_q_TGD.shape[:2] != wanted:
        raise ValueError(f"{wanted[0]} queries of {wanted[1]} key heads, but index queries {tuple(index_q_TGD.shape)}")
    if batch.max_queries > DECODE_QUERIES:
        raise ValueError(f"msa_decode takes {DECODE_QUERIES} new tokens a sequence, got {batch.max_queries}")
