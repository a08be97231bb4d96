"""Exact selection in Triton. Legend: G index heads (one a key head), N blocks, K chosen blocks.

A row is read once and thinned to a few hundred groups: block n belongs to group n mod GROUPS, and each group keeps its
best block. The best of all groups is chosen, only its group is read again for its next best, and so on K times: no row
is sorted, and a chosen block costs two reductions.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from m3_kernels.block_topk.reference import check_forced
from m3_kernels.launch import check_same_device, on_device_of

MAX_GROUPS = 256
FEW_ROWS = 528
"""With so few rows (four a multiprocessor) a row gets more groups and more warps, since latency is all that counts."""


def block_topk(
    scores_TGN: Tensor, positions_T: Tensor, *, top_k: int, block_size: int, init_blocks: int = 0, local_blocks: int = 1
) -> Tensor:
    """As the reference. Errors: ValueError also for scores that are not float32 or not contiguous."""
    check_forced(top_k, init_blocks, local_blocks)
    check_same_device(scores_TGN=scores_TGN, positions_T=positions_T)
    if scores_TGN.dtype != torch.float32 or not scores_TGN.is_contiguous():
        raise ValueError(
            f"scores must be contiguous float32, got {scores_TGN.dtype} with strides {scores_TGN.stride()}"
        )
    T, G, N = scores_TGN.shape
    if positions_T.shape != (T,):
        raise ValueError(f"{T} rows of scores need {T} positions, got {tuple(positions_T.shape)}")
    chosen_TGK = torch.empty(T, G, top_k, dtype=torch.int32, device=scores_TGN.device)
    few = T * G <= FEW_ROWS
    groups = min(8 * MAX_GROUPS if few else MAX_GROUPS, max(32, triton.next_power_of_2(N)))
    with on_device_of(scores_TGN):
        _choose[(T * G,)](
            scores_TGN,
            positions_T,
            chosen_TGK,
            G,
            N,
            block_size,
            init_blocks,
            local_blocks,
            TOP_K=top_k,
            GROUPS=groups,
            DEPTH=triton.next_power_of_2(triton.cdiv(N, groups)),
            num_warps=4 if groups > MAX_GROUPS else 1,
        )
    return chosen_TGK


@triton.jit
def _choose(
    scores,
    positions,
    chosen,
    G,
    N,
    block_size,
    init_blocks,
    local_blocks,
    TOP_K: tl.constexpr,
    GROUPS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """One program a row."""
    row = tl.program_id(0).to(tl.int64)
    own = (tl.load(positions + row // G) // block_size).to(tl.int32)
    num_visible = tl.minimum(own + 1, N)
    scores += row * N
    group = tl.arange(0, GROUPS)
    best = tl.full([GROUPS], float("-inf"), tl.float32)
    block = tl.zeros([GROUPS], tl.int32)
    for start in range(0, num_visible, GROUPS):
        n = start + group
        rank = _ranks(scores, n, num_visible, own, init_blocks, local_blocks)
        better = rank > best
        best = tl.where(better, rank, best)
        block = tl.where(better, n, block)
    for i in range(TOP_K):
        top = tl.max(_sort_keys(best, block), 0)
        n_top = 0x7FFFFFFF - (top & 0x7FFFFFFF).to(tl.int32)
        value = _value_of(top)
        tl.store(chosen + row * TOP_K + i, tl.where(value > float("-inf"), n_top, -1))
        # What the group holds behind the chosen block, in the same order.
        n = tl.arange(0, DEPTH) * GROUPS + n_top % GROUPS
        rank = _ranks(scores, n, num_visible, own, init_blocks, local_blocks)
        behind = (rank < value) | ((rank == value) & (n > n_top))
        following = tl.max(_sort_keys(tl.where(behind, rank, float("-inf")), n), 0)
        taken = group == n_top % GROUPS
        best = tl.where(taken, _value_of(following), best)
        block = tl.where(taken, 0x7FFFFFFF - (following & 0x7FFFFFFF).to(tl.int32), block)


@triton.jit
def _ranks(scores, n, num_visible, own, init_blocks, local_blocks):
    """The scores of blocks n as they compete: forced ones at infinity, NaN last of the numbers, hidden ones out."""
    score = tl.load(scores + n, mask=n < num_visible, other=float("-inf"))
    score = tl.where(score != score, -3.4028234663852886e38, score)
    forced = (n < init_blocks) | (n > own - local_blocks)
    score = tl.where(forced & (n < num_visible), float("inf"), score)
    return tl.where(score == 0, 0.0, score)  # -0.0 equals 0.0, in its bits too


@triton.jit
def _sort_keys(rank, n):
    """Rank and block number in one int64 that orders by rank, and among equals by the lower block."""
    bits = rank.to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - n).to(tl.int64)


@triton.jit
def _value_of(key):
    """The rank that a sort key was made of."""
    ordered = (key >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
