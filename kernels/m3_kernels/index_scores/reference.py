"""Block scores in plain torch. Legend: R index heads, N blocks of the longest sequence; others as in batch.py."""

import torch
from torch import Tensor

from m3_kernels.batch import AttentionBatch, sequence_pages

CHUNK = 128
"""Queries scored at a time: bounds the memory of the raw scores."""


def index_scores(index_q_TRD: Tensor, index_k_PSD: Tensor, batch: AttentionBatch) -> Tensor:
    """Score all blocks of all rows by the largest dot product over the block's visible keys.

    Shapes: one index key serves all R heads; N is the width of the page table.
    Returns: float32 [T, R, N], not scaled (order is all that counts); -inf for a block without a visible key.
    Source: MSA paper, section on block selection.
    """
    T, R, _ = index_q_TRD.shape
    num_blocks = batch.page_table_BN.shape[1]
    out = index_q_TRD.new_full((T, R, num_blocks), float("-inf"), dtype=torch.float32)
    if batch.decoding is not None:
        plan = batch.decoding
        q_1TRD = plan.take(index_q_TRD).float()[None]
        plan.put(out, plan.block_maxima(plan.scores(q_1TRD, index_k_PSD[:, :, None])[0], num_blocks))
    for b in batch.prefilling:
        _score_sequence(out, index_q_TRD, index_k_PSD, batch, b)
    return out


def _score_sequence(out: Tensor, index_q_TRD: Tensor, index_k_PSD: Tensor, batch: AttentionBatch, b: int) -> None:
    keys_LD = sequence_pages(index_k_PSD, batch.pages[b], batch.lengths[b]).float()
    first, count = batch.first_rows[b], batch.query_counts[b]
    for low in range(first, first + count, CHUNK):
        rows = slice(low, min(low + CHUNK, first + count))
        positions = batch.positions_T[rows]
        visible = batch.lengths[b] - (first + count - rows.stop)
        blocks = -(-visible // batch.page_size)
        scores = index_q_TRD[rows].float() @ keys_LD[:visible].T
        scores.masked_fill_(torch.arange(visible, device=scores.device) > positions[:, None, None], float("-inf"))
        padded = scores.new_full((*scores.shape[:2], blocks * batch.page_size), float("-inf"))
        padded[..., :visible] = scores
        out[rows, :, :blocks] = padded.view(*padded.shape[:2], blocks, batch.page_size).amax(-1)
