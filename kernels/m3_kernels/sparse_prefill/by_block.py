"""Blocks that attend to the queries that chose them, for queries that have little in common with their neighbours.

Each chosen pair of query and block is an *edge*. Edges are listed by page and key head; a work item is a page with a
few of its queries, whose result for that page alone goes to a place of the edge's own. A last pass weighs the up to K
results of each query. The order of a page's edges is left to chance and matters to nothing.
Legend: M rows of a tile, N keys of a page, D head size, E edges.
"""

import triton
import triton.language as tl

from m3_kernels.softmax import accumulate


@triton.jit
def list_edges(
    by_block, chosen, edge_ranks, edge_pages, edge_starts, edges, num_rows, G: tl.constexpr, K: tl.constexpr,
    ROWS: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Put every edge at its place: behind those of earlier pages, at its rank within its own."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    slot = tl.arange(0, SLOTS)
    marked = tl.load(by_block + row, mask=row < num_rows, other=0) == 1
    edge = row[:, None] * K + slot[None, :]
    there = marked[:, None] & (slot < K)[None, :]
    there = there & (tl.load(chosen + edge, mask=there, other=-1) >= 0)
    page = tl.load(edge_pages + edge, mask=there, other=0)
    rank = tl.load(edge_ranks + edge, mask=there, other=0)
    start = tl.load(edge_starts + page * G + (row % G)[:, None], mask=there, other=0)
    tl.store(edges + start + rank, edge, mask=there)


@triton.jit
def list_items(edge_counts, item_starts, items, num_lists, PER_ITEM: tl.constexpr, LISTS: tl.constexpr):
    """Write the list (page and key head) of every work item."""
    which = tl.program_id(0) * LISTS + tl.arange(0, LISTS)
    inside = which < num_lists
    num_items = (tl.load(edge_counts + which, mask=inside, other=0) + PER_ITEM - 1) // PER_ITEM
    start = tl.load(item_starts + which, mask=inside, other=0)
    for i in range(tl.max(num_items, 0)):
        tl.store(items + start + i, which, mask=i < num_items)


@triton.jit
def attend_items(
    q,
    k,
    v,
    chosen,
    positions,
    edges,
    edge_counts,
    edge_starts,
    items,
    item_starts,
    num_items,
    parts,
    parts_log,
    q_stride_t,
    q_stride_h,
    k_stride_p,
    k_stride_s,
    v_stride_p,
    v_stride_s,
    scale_log2,
    G: tl.constexpr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    QUERIES: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
    K: tl.constexpr,
    KEYS: tl.constexpr,
):
    """A fixed number of programs share the items: QUERIES queries that chose one page.

    parts [E, GROUP, D] holds the attention within the page, parts_log [E, GROUP] the binary logarithm of its weight.
    """
    row = tl.arange(0, QUERIES * HEADS)
    query, head = row // HEADS, row % HEADS
    d, key = tl.arange(0, D), tl.arange(0, KEYS)
    for item in range(tl.program_id(0), tl.load(num_items), tl.num_programs(0)):
        which = tl.load(items + item)
        page, g = (which // G).to(tl.int64), which % G
        at = (item - tl.load(item_starts + which)) * QUERIES + query
        chose = at < tl.load(edge_counts + which)
        valid = chose & (head < GROUP)
        edge = tl.load(edges + tl.load(edge_starts + which) + at, mask=chose, other=0)
        t = edge // (G * K)
        q_row = q + t * q_stride_t + (g * GROUP + head) * q_stride_h
        q_MD = tl.load(q_row[:, None] + d[None, :], mask=valid[:, None], other=0.0)
        n = tl.load(chosen + edge, mask=chose, other=0)
        last_seen = (tl.load(positions + t, mask=chose, other=S) - n.to(tl.int64) * S).to(tl.int32)
        k_tile = k + page * k_stride_p + g * D + key[:, None] * k_stride_s + d[None, :]
        v_tile = v + page * v_stride_p + g * D + key[:, None] * v_stride_s + d[None, :]
        acc_MD = tl.zeros([QUERIES * HEADS, D], tl.float32)
        top_M = tl.full([QUERIES * HEADS], -1.0e30, tl.float32)
        sum_M = tl.zeros([QUERIES * HEADS], tl.float32)
        for offset in range(0, S, KEYS):
            k_ND = tl.load(k_tile + offset * k_stride_s)
            v_ND = tl.load(v_tile + offset * v_stride_s)
            dots = tl.dot(q_MD, tl.trans(k_ND), input_precision="ieee")
            dots = tl.where((offset + key)[None, :] <= last_seen[:, None], dots, float("-inf"))
            acc_MD, top_M, sum_M = accumulate(dots, scale_log2, v_ND, acc_MD, top_M, sum_M)
        place = edge * GROUP + head
        result = (acc_MD / sum_M[:, None]).to(parts.dtype.element_ty)
        tl.store(parts + place[:, None] * D + d[None, :], result, mask=valid[:, None])
        tl.store(parts_log + place, top_M + tl.log2(sum_M), mask=valid)


@triton.jit
def add_up(
    by_block, chosen, parts, parts_log, out, out_stride_t, num_rows, ROWS: tl.constexpr, G: tl.constexpr,
    GROUP: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, K: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """ROWS pairs of query and key head."""
    first = tl.program_id(0) * ROWS
    row = first + tl.arange(0, ROWS)
    if tl.max(tl.load(by_block + row, mask=row < num_rows, other=0), 0) == 0:
        return
    for i in range(first, tl.minimum(first + ROWS, num_rows)):
        if tl.load(by_block + i) == 1:
            _add_up_row(
                i + tl.zeros([], tl.int64), chosen, parts, parts_log, out, out_stride_t, G, GROUP, HEADS, D, K, SLOTS
            )


@triton.jit
def _add_up_row(
    row, chosen, parts, parts_log, out, out_stride_t, G: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr,
    D: tl.constexpr, K: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """One query and key head: weigh the results of its blocks."""
    head, d, slot = tl.arange(0, HEADS), tl.arange(0, D), tl.arange(0, SLOTS)
    there = (slot < K) & (tl.load(chosen + row * K + slot, mask=slot < K, other=-1) >= 0)
    place = (row * K + slot)[:, None] * GROUP + head[None, :]
    mask = there[:, None] & (head < GROUP)[None, :]
    logs = tl.load(parts_log + place, mask=mask, other=float("-inf"))
    top_H = tl.maximum(tl.max(logs, 0), -1.0e30)
    sum_H = tl.sum(tl.exp2(logs - top_H[None, :]), 0)
    acc_HD = tl.zeros([HEADS, D], tl.float32)
    for i in range(K):
        n = tl.load(chosen + row * K + i)
        place_i = (row * K + i) * GROUP + head
        inside = head < tl.where(n >= 0, GROUP, 0)
        share = tl.exp2(tl.load(parts_log + place_i, mask=inside, other=float("-inf")) - top_H)
        part = tl.load(parts + place_i[:, None] * D + d[None, :], mask=inside[:, None], other=0.0)
        acc_HD += part.to(tl.float32) * share[:, None]
    acc_HD /= tl.where(sum_H > 0, sum_H, 1.0)[:, None]
    out_row = out + row // G * out_stride_t + (row % G * GROUP + head) * D
    tl.store(out_row[:, None] + d[None, :], acc_HD.to(out.dtype.element_ty), mask=(head < GROUP)[:, None])
