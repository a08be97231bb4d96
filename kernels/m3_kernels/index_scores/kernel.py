"""Block scores in Triton. Legend: R index heads, N blocks of the longest sequence; others as in batch.py.

One index key serves all index heads, so queries and heads are packed into the rows of one tile that loads each key
once. A tile of keys is one block, so a maximum along it is a score; nothing is exponentiated.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from m3_kernels.batch import AttentionBatch
from m3_kernels.launch import check_cache, check_power_of_two, check_same_device, on_device_of

TILE_ROWS = 128
"""Queries times heads of a prefill tile: enough to be bound by arithmetic and not by L2."""
MIN_TILES = 264
"""Two programs a multiprocessor; with fewer tiles the blocks are split among several programs."""
STORED_TOGETHER = 4
"""Blocks whose scores are kept in registers until they are stored side by side."""


def index_scores(index_q_TRD: Tensor, index_k_PSD: Tensor, batch: AttentionBatch) -> Tensor:
    """As the reference. Errors: ValueError for dtypes, strides or sizes that the tiles cannot take."""
    check_same_device(index_q=index_q_TRD, index_k=index_k_PSD, page_table=batch.page_table_BN)
    check_cache("the index cache", index_k_PSD, like=index_q_TRD)
    T, R, D = index_q_TRD.shape
    S = index_k_PSD.shape[1]
    check_power_of_two(page_size=S, head_dim=D)
    if index_q_TRD.stride(2) != 1:
        raise ValueError(f"the last axis of the index queries must be contiguous, got strides {index_q_TRD.stride()}")
    B, N = batch.page_table_BN.shape
    scores_TRN = torch.empty(T, R, N, dtype=torch.float32, device=index_q_TRD.device)
    if T == 0:
        return scores_TRN
    arguments = (
        index_q_TRD,
        index_k_PSD,
        scores_TRN,
        batch.query_starts,
        batch.lengths_B,
        batch.page_table_BN,
        index_q_TRD.stride(0),
        index_q_TRD.stride(1),
        index_k_PSD.stride(0),
        N,
    )
    shape = {"R": R, "HEADS": triton.next_power_of_2(R), "S": S, "D": D}
    with on_device_of(index_q_TRD):
        queries = max(1, TILE_ROWS // shape["HEADS"])
        tiles = triton.cdiv(batch.max_queries, queries)
        splits = min(N, triton.cdiv(MIN_TILES, tiles * B))
        _score[(tiles, splits, B)](
            *arguments, **shape, QUERIES=queries, TOGETHER=STORED_TOGETHER, num_warps=8, num_stages=2, maxnreg=128
        )
    return scores_TRN


@triton.jit
def _score(
    q,
    k,
    scores,
    query_starts,
    lengths,
    page_table,
    q_stride_t,
    q_stride_r,
    k_stride_p,
    N,
    R: tl.constexpr,
    HEADS: tl.constexpr,
    S: tl.constexpr,
    D: tl.constexpr,
    QUERIES: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    """One program: QUERIES neighbouring queries with all their heads, against its share of the blocks."""
    b = tl.program_id(2)
    first_row = tl.load(query_starts + b)
    count = tl.load(query_starts + b + 1) - first_row
    first = tl.program_id(0) * QUERIES
    if first >= count:
        return
    position = tl.load(lengths + b) - count + first
    row = tl.arange(0, QUERIES * HEADS)
    query, head = row // HEADS, row % HEADS
    valid = (first + query < count) & (head < R)
    t = (first_row + first + query).to(tl.int64)
    d = tl.arange(0, D)
    q_row = q + t * q_stride_t + head * q_stride_r
    q_MD = tl.load(q_row[:, None] + d[None, :], mask=valid[:, None], other=0.0)
    out = scores + (t * R + head) * N
    page_table += b * N
    key = tl.arange(0, S)
    k_tile = key[:, None] * D + d[None, :]

    # Blocks that every query of the tile sees whole.
    num_whole = (position + 1) // S
    split, num_splits = tl.program_id(1), tl.num_programs(1)
    share = tl.cdiv(tl.cdiv(num_whole, num_splits), TOGETHER) * TOGETHER
    end = tl.minimum((split + 1) * share, num_whole)
    column = tl.arange(0, TOGETHER)
    scores_MX = tl.full([QUERIES * HEADS, TOGETHER], float("-inf"), tl.float32)
    for n in range(split * share, end):
        page = tl.load(page_table + n).to(tl.int64)
        k_SD = tl.load(k + page * k_stride_p + k_tile)
        score_M = tl.max(tl.dot(q_MD, tl.trans(k_SD), input_precision="ieee"), 1)
        scores_MX = tl.where((column == n % TOGETHER)[None, :], score_M[:, None], scores_MX)
        if n % TOGETHER == TOGETHER - 1:
            tl.store(out[:, None] + (n + 1 - TOGETHER + column)[None, :], scores_MX, mask=valid[:, None])
    rest = tl.maximum(end, split * share) // TOGETHER * TOGETHER + column
    tl.store(out[:, None] + rest[None, :], scores_MX, mask=valid[:, None] & (rest < end)[None, :])
    if split != num_splits - 1:
        return
    # The blocks that hold the queries themselves, then those that nobody sees.
    last = tl.minimum(first + QUERIES, count) - 1 - first
    num_seen = (position + last) // S + 1
    for n in range(num_whole, num_seen):
        page = tl.load(page_table + n).to(tl.int64)
        k_SD = tl.load(k + page * k_stride_p + k_tile)
        dots = tl.dot(q_MD, tl.trans(k_SD), input_precision="ieee")
        seen = (n * S + key)[None, :] <= (position + query)[:, None]
        tl.store(out + n, tl.max(tl.where(seen, dots, float("-inf")), 1), mask=valid)
    for n in range(num_seen, N):
        tl.store(out + n, tl.full([QUERIES * HEADS], float("-inf"), tl.float32), mask=valid)
