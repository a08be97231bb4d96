"""Tiles of neighbouring queries that attend to the union of their block lists. Legend: M rows of a tile.

Neighbours choose nearly the same blocks, so a tile reads each block of the union once, and each query hides what it did
not choose. The unions are built by comparing all entries of a tile with each other: a list has no order that could be
relied on. A tile whose queries have too little in common is left to `by_block`.
"""

import triton
import triton.language as tl

from m3_kernels.softmax import accumulate


@triton.jit
def unite(
    chosen,
    pages,
    blocks,
    choosers,
    counts,
    by_block,
    edge_counts,
    edge_ranks,
    edge_pages,
    query_starts,
    lengths,
    page_table,
    N,
    limit,
    K: tl.constexpr,
    SLOTS: tl.constexpr,
    QUERIES: tl.constexpr,
    S: tl.constexpr,
):
    """One tile's union: first the blocks that lie before its queries, then the others; `choosers` has a bit a query.

    counts: how many the first are, and how many all are; both 0 for a tile with more than `limit`, whose queries are
    marked in `by_block` and whose entries are counted by page instead.
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
    whole = kept & ((n + 1) * S <= position + 1)
    num_whole = tl.sum(whole.to(tl.int32), 0)
    rest = kept & (~whole)
    slot_of = tl.where(whole, tl.cumsum(whole.to(tl.int32), 0), num_whole + tl.cumsum(rest.to(tl.int32), 0)) - 1
    page = tl.load(page_table + b * N + n, mask=kept, other=0)
    tl.store(pages + at * LIST + slot_of, page, mask=kept)
    tl.store(blocks + at * LIST + slot_of, n, mask=kept)
    tl.store(choosers + at * LIST + slot_of, bits, mask=kept)
    num_all = num_whole + tl.sum(rest.to(tl.int32), 0)
    together = num_all <= limit
    tl.store(counts + at * 2, tl.where(together, num_whole, 0))
    tl.store(counts + at * 2 + 1, tl.where(together, num_all, 0))
    tl.store(
        by_block + t * G + g, tl.where(together, 0, 1) + tl.zeros_like(n), mask=(first + query < count) & (slot == 0)
    )
    if not together:
        chosen_page = tl.load(page_table + b * N + n, mask=n >= 0, other=0)
        rank = tl.atomic_add(edge_counts + chosen_page * G + g, 1, mask=n >= 0, sem="relaxed")
        edge = (t * G + g) * K + slot
        tl.store(edge_ranks + edge, rank, mask=n >= 0)
        tl.store(edge_pages + edge, chosen_page, mask=n >= 0)


@triton.jit
def attend_unions(
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
    BOUNDED: tl.constexpr,
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
    if num_all == 0:
        return
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
        chose = (tl.load(choosers + i // STEPS) >> query) & 1
        offset = (i % STEPS) * KEYS
        k_ND = tl.load(k_tile + page * k_stride_p + offset * k_stride_s)
        v_ND = tl.load(v_tile + page * v_stride_p + offset * v_stride_s)
        dots = tl.dot(q_MD, tl.trans(k_ND), input_precision="ieee")
        bias_M = tl.where(chose == 1, 0.0, float("-inf"))
        acc_MD, top_M, sum_M = accumulate(dots, scale_log2, v_ND, acc_MD, top_M, sum_M, BOUNDED, bias_M)
    for i in range(num_whole * STEPS, num_all * STEPS):
        page = tl.load(pages + i // STEPS).to(tl.int64)
        n = tl.load(blocks + i // STEPS)
        bits = tl.load(choosers + i // STEPS)
        offset = (i % STEPS) * KEYS
        k_ND = tl.load(k_tile + page * k_stride_p + offset * k_stride_s)
        v_ND = tl.load(v_tile + page * v_stride_p + offset * v_stride_s)
        dots = tl.dot(q_MD, tl.trans(k_ND), input_precision="ieee")
        chose = ((bits >> query) & 1) == 1
        last_seen = tl.where(chose, position + query - n * S - offset, -1)
        seen = key[None, :] <= last_seen[:, None]
        dots = tl.where(seen, dots, float("-inf"))
        acc_MD, top_M, sum_M = accumulate(dots, scale_log2, v_ND, acc_MD, top_M, sum_M, BOUNDED)

    result = acc_MD / tl.where(sum_M > 0, sum_M, 1.0)[:, None]  # rows of padding chose nothing
    out_row = out + t * out_stride_t + (g * GROUP + head) * D
    tl.store(out_row[:, None] + d[None, :], result.to(out.dtype.element_ty), mask=valid[:, None])
