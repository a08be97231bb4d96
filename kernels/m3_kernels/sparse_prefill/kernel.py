"""Sparse attention of many queries in Triton. Legend: as in the reference; M rows of a tile.

A tile is a few neighbouring queries with all heads of one key head. Neighbours choose nearly the same blocks, so the
tile attends to the union of their lists, read once, and each query hides what it did not choose. The unions are built
on the device, by comparing all entries of a tile with each other: a list has no order that could be relied on.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from m3_kernels.batch import AttentionBatch
from m3_kernels.launch import check_cache, check_power_of_two, check_same_device, on_device_of
from m3_kernels.softmax import accumulate

TILE_ROWS = 64
"""Queries times heads of a tile: one warp group's wgmma."""
MAX_TILE_QUERIES = 8
KEYS = 64
"""Keys of one step; half a block, so that two programs with three stages fit a multiprocessor."""


def sparse_prefill(
    q_THD: Tensor, k_PSGD: Tensor, v_PSGD: Tensor, blocks_TGK: Tensor, batch: AttentionBatch, *, scale: float
) -> Tensor:
    """As the reference. Errors: ValueError also for dtypes, strides or sizes that the tiles cannot take."""
    check_same_device(q=q_THD, k=k_PSGD, v=v_PSGD, blocks=blocks_TGK, page_table=batch.page_table_BN)
    check_cache("the key cache", k_PSGD, like=q_THD)
    check_cache("the value cache", v_PSGD, like=q_THD)
    T, H, D = q_THD.shape
    _, S, G, _ = k_PSGD.shape
    if H % G:
        raise ValueError(f"{H} query heads cannot share {G} key heads evenly")
    check_power_of_two(page_size=S, head_dim=D)
    if q_THD.stride(2) != 1 or not blocks_TGK.is_contiguous() or blocks_TGK.dtype != torch.int32:
        raise ValueError("the last axis of q must be contiguous, and the block lists contiguous int32")
    out_THD = torch.empty(T, H, D, dtype=q_THD.dtype, device=q_THD.device)
    if T == 0:
        return out_THD
    B, N = batch.page_table_BN.shape
    K = blocks_TGK.shape[2]
    heads = triton.next_power_of_2(H // G)
    queries = min(MAX_TILE_QUERIES, max(1, TILE_ROWS // heads))
    slots = triton.next_power_of_2(K)
    tiles = triton.cdiv(batch.max_queries, queries)
    entries = torch.empty(3, B, tiles, G, queries * slots, dtype=torch.int32, device=q_THD.device)
    counts = torch.empty(B, tiles, G, 2, dtype=torch.int32, device=q_THD.device)
    pages, blocks, choosers = entries
    where = (batch.query_starts, batch.lengths_B, batch.page_table_BN)
    shape = {"QUERIES": queries, "S": S}
    with on_device_of(q_THD):
        _unite[(tiles, G, B)](
            blocks_TGK, pages, blocks, choosers, counts, *where, N, K=K, SLOTS=slots, **shape, num_warps=4
        )
        _attend_tiles[(tiles, G, B)](
            q_THD,
            k_PSGD,
            v_PSGD,
            out_THD,
            pages,
            blocks,
            choosers,
            counts,
            batch.query_starts,
            batch.lengths_B,
            q_THD.stride(0),
            q_THD.stride(1),
            out_THD.stride(0),
            k_PSGD.stride(0),
            k_PSGD.stride(1),
            v_PSGD.stride(0),
            v_PSGD.stride(1),
            scale * 1.4426950408889634,
            GROUP=H // G,
            HEADS=max(heads, 16 // queries),
            D=D,
            LIST=queries * slots,
            KEYS=min(KEYS, S),
            **shape,
            num_warps=4,
            num_stages=3,
        )
    return out_THD


@triton.jit
def _unite(
    chosen,
    pages,
    blocks,
    choosers,
    counts,
    query_starts,
    lengths,
    page_table,
    N,
    K: tl.constexpr,
    SLOTS: tl.constexpr,
    QUERIES: tl.constexpr,
    S: tl.constexpr,
):
    """One tile's union: first the blocks that all its queries see whole, then the others; `choosers` has a bit a query.

    counts: how many the first are, and how many all are.
    """
    tile, g, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    G = tl.num_programs(1)
    first_row = tl.load(query_starts + b)
    count = tl.load(query_starts + b + 1) - first_row
    first = tile * QUERIES
    if first >= count:
        return
    position = tl.load(lengths + b) - count + first
    LIST: tl.constexpr = QUERIES * SLOTS
    i = tl.arange(0, LIST)
    query, slot = i // SLOTS, i % SLOTS
    t = (first_row + first + query).to(tl.int64)
    n = tl.load(chosen + (t * G + g) * K + slot, mask=(first + query < count) & (slot < K), other=-1)
    at = ((b * tl.num_programs(0) + tile) * G + g).to(tl.int64)
    # The same entries as the other axis of a table of comparisons.
    there = tl.trans(tl.broadcast_to(n[:, None], [LIST, LIST]))
    same = (n[:, None] == there) & (n >= 0)[:, None]
    earlier = same & (i[None, :] < i[:, None])
    kept = (n >= 0) & (tl.sum(earlier.to(tl.int32), 1) == 0)
    bits = tl.sum(tl.where(same, (1 << query)[None, :], 0), 1)
    everyone = (1 << tl.minimum(QUERIES, count - first)) - 1
    whole = kept & (bits == everyone) & ((n + 1) * S <= position + 1)
    num_whole = tl.sum(whole.to(tl.int32), 0)
    rest = kept & (~whole)
    slot_of = tl.where(whole, tl.cumsum(whole.to(tl.int32), 0), num_whole + tl.cumsum(rest.to(tl.int32), 0)) - 1
    page = tl.load(page_table + b * N + n, mask=kept, other=0)
    tl.store(pages + at * LIST + slot_of, page, mask=kept)
    tl.store(blocks + at * LIST + slot_of, n, mask=kept)
    tl.store(choosers + at * LIST + slot_of, bits, mask=kept)
    tl.store(counts + at * 2, num_whole)
    tl.store(counts + at * 2 + 1, num_whole + tl.sum(rest.to(tl.int32), 0))


@triton.jit
def _attend_tiles(
    q,
    k,
    v,
    out,
    pages,
    blocks,
    choosers,
    counts,
    query_starts,
    lengths,
    q_stride_t,
    q_stride_h,
    out_stride_t,
    k_stride_p,
    k_stride_s,
    v_stride_p,
    v_stride_s,
    scale_log2,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    LIST: tl.constexpr,
    KEYS: tl.constexpr,
    QUERIES: tl.constexpr,
    S: tl.constexpr,
):
    """One tile: QUERIES neighbouring queries with the GROUP heads of one key head."""
    tile, g, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_row = tl.load(query_starts + b)
    count = tl.load(query_starts + b + 1) - first_row
    first = tile * QUERIES
    if first >= count:
        return
    position = tl.load(lengths + b) - count + first
    at = ((b * tl.num_programs(0) + tile) * tl.num_programs(1) + g).to(tl.int64)
    num_whole = tl.load(counts + at * 2)
    num_all = tl.load(counts + at * 2 + 1)
    pages += at * LIST
    blocks += at * LIST
    choosers += at * LIST

    row = tl.arange(0, QUERIES * HEADS)
    query, head = row // HEADS, row % HEADS
    valid = (first + query < count) & (head < GROUP)
    d = tl.arange(0, D)
    t = (first_row + first + query).to(tl.int64)
    q_row = q + t * q_stride_t + (g * GROUP + head) * q_stride_h
    q_MD = tl.load(q_row[:, None] + d[None, :], mask=valid[:, None], other=0.0)
    key = tl.arange(0, KEYS)
    k_tile = k + g * D + key[:, None] * k_stride_s + d[None, :]
    v_tile = v + g * D + key[:, None] * v_stride_s + d[None, :]
    acc_MD = tl.zeros([QUERIES * HEADS, D], tl.float32)
    # A finite start: a row that chose none of the keys so far must not subtract infinity from infinity.
    top_M = tl.full([QUERIES * HEADS], -1.0e30, tl.float32)
    sum_M = tl.zeros([QUERIES * HEADS], tl.float32)
    STEPS: tl.constexpr = S // KEYS

    for i in range(num_whole * STEPS):
        page = tl.load(pages + i // STEPS).to(tl.int64)
        offset = (i % STEPS) * KEYS
        k_ND = tl.load(k_tile + page * k_stride_p + offset * k_stride_s)
        v_ND = tl.load(v_tile + page * v_stride_p + offset * v_stride_s)
        dots = tl.dot(q_MD, tl.trans(k_ND)) * scale_log2
        acc_MD, top_M, sum_M = accumulate(dots, v_ND, acc_MD, top_M, sum_M)
    for i in range(num_whole * STEPS, num_all * STEPS):
        page = tl.load(pages + i // STEPS).to(tl.int64)
        n = tl.load(blocks + i // STEPS)
        bits = tl.load(choosers + i // STEPS)
        offset = (i % STEPS) * KEYS
        k_ND = tl.load(k_tile + page * k_stride_p + offset * k_stride_s)
        v_ND = tl.load(v_tile + page * v_stride_p + offset * v_stride_s)
        dots = tl.dot(q_MD, tl.trans(k_ND)) * scale_log2
        chose = ((bits >> query) & 1) == 1
        seen = chose[:, None] & ((n * S + offset + key)[None, :] <= (position + query)[:, None])
        acc_MD, top_M, sum_M = accumulate(tl.where(seen, dots, float("-inf")), v_ND, acc_MD, top_M, sum_M)

    result = acc_MD / tl.where(sum_M > 0, sum_M, 1.0)[:, None]
    out_row = out + t * out_stride_t + (g * GROUP + head) * D
    tl.store(out_row[:, None] + d[None, :], result.to(out.dtype.element_ty), mask=valid[:, None])
