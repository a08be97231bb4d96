"""Choosing blocks for a prompt, on one rank or on several that hold the same index heads.

Replicas share the blocks that lie before a step's new tokens: each scores its part and offers its best, and the best of
all offers are the best of all blocks, because a block that is among the best K is among the best K of its part too.
Legend: T new tokens, G index heads, N blocks, K chosen blocks, P replicas.
"""

import torch
from torch import Tensor

from m3_kernels.batch import AttentionBatch
from m3_kernels.block_topk import block_topk
from m3_kernels.index_scores import index_scores
from m3_model.config import M3Config
from m3_model.group import Parallel
from m3_model.share import part

_FORCED = float("inf")


def choose_blocks(
    index_q_TGD: Tensor, index_k_PSD: Tensor, batch: AttentionBatch, config: M3Config, parallel: Parallel
) -> Tensor:
    """The blocks that each row and key head attends to, int32 [T, G, K] as block_topk gives them."""
    if parallel.replicas.size > 1 and batch.max_length >= parallel.shared_blocks * config.block_size:
        return _choose_together(index_q_TGD, index_k_PSD, batch, config, parallel)
    return block_topk(
        index_scores(index_q_TGD, index_k_PSD, batch),
        batch.positions_T,
        top_k=config.top_k_blocks,
        block_size=config.block_size,
        init_blocks=config.init_blocks,
        local_blocks=config.local_blocks,
    )


def _choose_together(
    index_q_TGD: Tensor, index_k_PSD: Tensor, batch: AttentionBatch, config: M3Config, parallel: Parallel
) -> Tensor:
    """Score this replica's blocks, gather every replica's best with their scores, and take the best of those."""
    group, K = parallel.replicas, config.top_k_blocks
    plan = _Part(batch, config, group.rank, group.size)
    scores_TGN = plan.scores(index_q_TGD, index_k_PSD)
    best_TGK = block_topk(
        scores_TGN, plan.batch.positions_T, top_k=K, block_size=config.block_size, init_blocks=0, local_blocks=0
    )
    offered_TGK = scores_TGN.gather(2, best_TGK.clamp(min=0).long()).masked_fill(best_TGK < 0, float("-inf"))
    blocks_TGK = plan.blocks_TN.to(best_TGK.device).gather(1, best_TGK.clamp(min=0).long().flatten(1)).view_as(best_TGK)
    # Block numbers travel as float32, which is exact up to 2 ** 24 of them: 2 billion tokens.
    both = group.gather(torch.stack((offered_TGK, blocks_TGK.float())))
    offered, blocks = both.permute(1, 2, 3, 0, 4).flatten(3)
    # By block first and then, keeping that order, by score: of two equal scores the lower block wins.
    by_block = blocks.argsort(dim=-1, stable=True)
    offered, blocks = offered.gather(2, by_block), blocks.gather(2, by_block)
    values, order = offered.sort(dim=-1, descending=True, stable=True)
    chosen: Tensor = blocks.gather(2, order).masked_fill(values == float("-inf"), -1)[..., :K].int()
    return chosen


class _Part:
    """What one replica scores of each sequence: its part of the past, between the forced first blocks and the tail.

    The tail is the blocks of the new tokens and the forced ones before them; in it a row's position decides what it
    sees. Every replica scores the few blocks of both ends, so that positions and forced blocks are those of an ordinary
    batch of shorter sequences, and the first and the last replica offer them.
    """

    def __init__(self, batch: AttentionBatch, config: M3Config, rank: int, size: int) -> None:
        S = config.block_size
        pages: list[tuple[int, ...]] = []
        numbers: list[list[int]] = []
        lengths: list[int] = []
        self._mine: list[range] = []
        self.config = config
        for table, length, count in zip(batch.pages, batch.lengths, batch.query_counts, strict=True):
            tail = max((length - count) // S - config.local_blocks + 1, 0)
            first = min(config.init_blocks, tail)
            own = part(tail - first, rank, size)
            chosen = [*range(first), *range(first + own.start, first + own.stop), *range(tail, len(table))]
            numbers.append(chosen)
            pages.append(tuple(table[n] for n in chosen))
            lengths.append(length - (tail - first - len(own)) * S)
            self._mine.append(range(0 if rank == 0 else first, len(chosen) if rank == size - 1 else first + len(own)))
        device = batch.positions_T.device
        self.batch = AttentionBatch.build(batch.query_counts, lengths, pages, page_size=S, device=device)
        width = max(map(len, numbers))
        padded = torch.tensor([[*row, *[-1] * (width - len(row))] for row in numbers], device=device)
        rows_T = torch.repeat_interleave(torch.tensor(batch.query_counts, device=device))
        self.blocks_TN = padded[rows_T]
        """Which block of the whole sequence each scored one is."""
        self._rows_T = rows_T

    def scores(self, index_q_TGD: Tensor, index_k_PSD: Tensor) -> Tensor:
        """Scores of the blocks that this replica offers, forced ones first; -inf for all others."""
        config = self.config
        scores_TGN = index_scores(index_q_TGD, index_k_PSD, self.batch)
        scores_TGN = torch.where(torch.isnan(scores_TGN), torch.finfo(scores_TGN.dtype).min, scores_TGN)
        own_T1 = (self.batch.positions_T // config.block_size)[:, None]
        block_N = torch.arange(scores_TGN.shape[2], device=scores_TGN.device)
        is_forced = (block_N <= own_T1) & ((block_N > own_T1 - config.local_blocks) | (block_N < config.init_blocks))
        starts, stops = (
            torch.tensor(ends, device=scores_TGN.device)[self._rows_T, None]
            for ends in ([r.start for r in self._mine], [r.stop for r in self._mine])
        )
        is_offered = (block_N >= starts) & (block_N < stops)
        return scores_TGN.masked_fill(is_forced[:, None], _FORCED).masked_fill(~is_offered[:, None], float("-inf"))
