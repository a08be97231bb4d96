"""Exact selection in Triton. Legend: G index heads (one a key head), N blocks, K chosen blocks.

A row is read once and thinned to a few hundred groups: block n belongs to group n mod GROUPS, and each group keeps its
best block. No row is sorted. Then one of two ways:

- Many blocks: the best of all groups is chosen, only its group is read again for its next best, and so on K times. A
  chosen block costs two reductions, one after the other; other rows hide that.
- Few blocks: comparing every group's best with every other's tells the K best groups at once, and the K best blocks lie
  in them. The same step narrows these groups to quarters, and so on down to single blocks.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from m3_kernels.block_topk.reference import check_forced
from m3_kernels.launch import check_same_device, on_device_of
from m3_kernels.sort_keys import block_of, competing_rank, largest_blocks, num_larger, rank_of, sort_key

MAX_GROUPS = 256
FEW_BLOCKS = 256
"""So few blocks are compared faster than they are chosen one by one."""
COMPARED_GROUPS = 32
"""Groups that are compared with each other."""


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
    slots = triton.next_power_of_2(top_k)
    by_comparison = N <= FEW_BLOCKS
    groups = max(slots, COMPARED_GROUPS if by_comparison else MAX_GROUPS)
    depth = triton.next_power_of_2(triton.cdiv(N, groups))
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
            SLOTS=slots,
            GROUPS=groups,
            DEPTH=depth,
            LEVELS=depth.bit_length() // 2,
            BY_COMPARISON=by_comparison,
            num_warps=1,
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
    SLOTS: tl.constexpr,
    GROUPS: tl.constexpr,
    DEPTH: tl.constexpr,
    LEVELS: tl.constexpr,
    BY_COMPARISON: tl.constexpr,
):
    """One program a row."""
    row = tl.program_id(0).to(tl.int64)
    own = (tl.load(positions + row // G) // block_size).to(tl.int32)
    num_visible = tl.minimum(own + 1, N)
    scores += row * N
    chosen += row * TOP_K
    if BY_COMPARISON:
        _choose_by_comparison(
            scores, chosen, num_visible, own, init_blocks, local_blocks, TOP_K, SLOTS, GROUPS, DEPTH, LEVELS
        )
    else:
        _choose_one_by_one(scores, chosen, num_visible, own, init_blocks, local_blocks, TOP_K, GROUPS, DEPTH)


@triton.jit
def _choose_one_by_one(
    scores, chosen, num_visible, own, init_blocks, local_blocks,
    TOP_K: tl.constexpr, GROUPS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
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
        top = tl.max(sort_key(best, block), 0)
        n_top = block_of(top)
        value = rank_of(top)
        tl.store(chosen + i, tl.where(value > float("-inf"), n_top, -1))
        # What the group holds behind the chosen block, in the same order.
        n = tl.arange(0, DEPTH) * GROUPS + n_top % GROUPS
        rank = _ranks(scores, n, num_visible, own, init_blocks, local_blocks)
        behind = (rank < value) | ((rank == value) & (n > n_top))
        following = tl.max(sort_key(tl.where(behind, rank, float("-inf")), n), 0)
        taken = group == n_top % GROUPS
        best = tl.where(taken, rank_of(following), best)
        block = tl.where(taken, block_of(following), block)


@triton.jit
def _choose_by_comparison(
    scores, chosen, num_visible, own, init_blocks, local_blocks,
    TOP_K: tl.constexpr, SLOTS: tl.constexpr, GROUPS: tl.constexpr, DEPTH: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    n = tl.arange(0, DEPTH)[:, None] * GROUPS + tl.arange(0, GROUPS)[None, :]
    rank = _ranks(scores, n, num_visible, own, init_blocks, local_blocks)
    keys = tl.max(sort_key(rank, n), 0)
    for level in tl.static_range(LEVELS):
        keys = _narrowed(keys, scores, num_visible, own, init_blocks, local_blocks, SLOTS, GROUPS, DEPTH >> (2 * level))
    place = num_larger(keys)
    found = tl.where(rank_of(keys) > float("-inf"), block_of(keys), -1)
    tl.store(chosen + place, found, mask=place < TOP_K)


@triton.jit
def _narrowed(
    keys, scores, num_visible, own, init_blocks, local_blocks, SLOTS: tl.constexpr, GROUPS: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Each key stands for the best of WIDTH blocks of a group; the best SLOTS of them, cut into at most four parts."""
    PARTS: tl.constexpr = min(4, WIDTH)
    best = largest_blocks(keys, SLOTS)
    first = best // GROUPS // WIDTH * WIDTH
    n = (first[:, None] + tl.arange(0, WIDTH)[None, :]) * GROUPS + (best % GROUPS)[:, None]
    rank = _ranks(scores, n, num_visible, own, init_blocks, local_blocks)
    return tl.max(sort_key(rank, n).reshape(SLOTS * PARTS, WIDTH // PARTS), 1)


@triton.jit
def _ranks(scores, n, num_visible, own, init_blocks, local_blocks):
    score = tl.load(scores + n, mask=n < num_visible, other=float("-inf"))
    return competing_rank(score, n, num_visible, own, init_blocks, local_blocks)
