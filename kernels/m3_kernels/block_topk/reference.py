"""Exact selection in plain torch. Legend: G index heads (one a key head), N blocks, K chosen blocks."""

import torch
from torch import Tensor


def block_topk(
    scores_TGN: Tensor, positions_T: Tensor, *, top_k: int, block_size: int, init_blocks: int = 0, local_blocks: int = 1
) -> Tensor:
    """Choose the top_k best blocks of each row; forced blocks come first and take a slot each.

    Shapes: scores as index_scores gives them. Forced are the first `init_blocks` blocks and the `local_blocks` blocks
    that end with the row's own. Of two equal scores the lower block wins; NaN ranks below every number.
    Returns: int32 [T, G, top_k] block numbers within the sequence, left-packed without duplicates, -1 after them; a
    block behind the row's own is never chosen. The order among the chosen is not part of the contract.
    Errors: ValueError if more blocks are forced than chosen.
    """
    check_forced(top_k, init_blocks, local_blocks)
    T, G, N = scores_TGN.shape
    own_T1 = (positions_T // block_size)[:, None]
    block_N = torch.arange(N, device=scores_TGN.device)
    forced_TN = (block_N <= own_T1) & ((block_N > own_T1 - local_blocks) | (block_N < init_blocks))
    ranked = torch.where(torch.isnan(scores_TGN), torch.finfo(scores_TGN.dtype).min, scores_TGN)
    ranked = ranked.masked_fill(forced_TN[:, None], float("inf")).masked_fill(
        (block_N > own_T1)[:, None], float("-inf")
    )
    best, blocks = torch.sort(ranked, dim=-1, descending=True, stable=True)
    chosen = torch.where(best == float("-inf"), -1, blocks)[..., :top_k].int()
    if top_k > N:
        chosen = torch.cat([chosen, chosen.new_full((T, G, top_k - N), -1)], -1)
    return chosen


def check_forced(top_k: int, init_blocks: int, local_blocks: int) -> None:
    """Errors: ValueError if more blocks are forced than chosen."""
    if init_blocks + local_blocks > top_k:
        raise ValueError(
            f"{init_blocks} initial and {local_blocks} local blocks are forced, but only {top_k} are chosen"
        )
