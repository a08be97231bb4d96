"""Paged causal attention in Triton. Legend: as in the reference; M rows of a tile.

A tile is some neighbouring queries with all heads of one key head, so that each key is loaded once for all of them. Few
queries leave most of the machine idle, so their keys are split among programs; `softmax` says how they come together.
Sequences with very many new tokens go through a library instead.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from m3_kernels.batch import AttentionBatch
from m3_kernels.dense_attention.library import MIN_QUERIES, attend_sequence
from m3_kernels.launch import check_attention, on_device_of
from m3_kernels.softmax import LOG2_E, accumulate, arrival_counters, is_last, merged

TILE_ROWS = 128
"""Queries times heads of a tile where there are many queries."""
PROGRAMS = 264
"""Keys are split until there are about so many programs: two a multiprocessor."""
MAX_PARTS = 64
KEYS = 64
"""Keys of one step."""
MIN_STEPS = 4
"""A part has at least so many steps, or its result costs more to merge than it saves."""


def dense_attention(q_THD: Tensor, k_PSGD: Tensor, v_PSGD: Tensor, batch: AttentionBatch, *, scale: float) -> Tensor:
    """As the reference. Errors: ValueError also for dtypes, strides or sizes that the tiles cannot take."""
    return attend(q_THD, k_PSGD, v_PSGD, batch, scale=scale, many=MIN_QUERIES)


def attend(q_THD: Tensor, k_PSGD: Tensor, v_PSGD: Tensor, batch: AttentionBatch, *, scale: float, many: int) -> Tensor:
    """The same for another border: sequences with `many` or more new tokens go through the library."""
    check_attention(q_THD, k_PSGD, v_PSGD, batch.page_table_BN)
    T, H, D = q_THD.shape
    _, S, G, _ = k_PSGD.shape
    out_THD = torch.empty(T, H, D, dtype=q_THD.dtype, device=q_THD.device)
    if T == 0:
        return out_THD
    for b, count in enumerate(batch.query_counts):
        if count >= many:
            attend_sequence(out_THD, q_THD, k_PSGD, v_PSGD, batch, b, scale=scale)
    most = max((count for count in batch.query_counts if count < many), default=0)
    if not most:
        return out_THD
    B, N = batch.page_table_BN.shape
    heads = triton.next_power_of_2(H // G)
    queries = min(max(1, TILE_ROWS // heads), triton.next_power_of_2(most))
    heads = max(heads, 16 // queries)
    rows = queries * heads
    tiles = triton.cdiv(most, queries)
    parts = min(MAX_PARTS, triton.next_power_of_2(triton.cdiv(PROGRAMS, tiles * G * B)))
    parts_acc = torch.empty(B * tiles * G if parts > 1 else 0, parts, rows, D, dtype=torch.float32, device=q_THD.device)
    parts_top, parts_sum = torch.empty(2, *parts_acc.shape[:3], dtype=torch.float32, device=q_THD.device)
    with on_device_of(q_THD):
        _attend[(tiles * parts, G, B)](
            q_THD,
            k_PSGD,
            v_PSGD,
            out_THD,
            parts_acc,
            parts_top,
            parts_sum,
            arrival_counters(q_THD.device),
            batch.query_starts,
            batch.lengths_B,
            batch.page_table_BN,
            q_THD.stride(0),
            q_THD.stride(1),
            k_PSGD.stride(0),
            k_PSGD.stride(1),
            v_PSGD.stride(0),
            v_PSGD.stride(1),
            N,
            many,
            scale * LOG2_E,
            GROUP=H // G,
            HEADS=heads,
            QUERIES=queries,
            D=D,
            S=S,
            KEYS=min(KEYS, S),
            PARTS=parts,
            MIN_STEPS=MIN_STEPS,
            num_warps=8 if rows >= 128 else 4,
            num_stages=3,
        )
    return out_THD


@triton.jit
def _attend(
    q,
    k,
    v,
    out,
    parts_acc,
    parts_top,
    parts_sum,
    arrived,
    query_starts,
    lengths,
    page_table,
    q_stride_t,
    q_stride_h,
    k_stride_p,
    k_stride_s,
    v_stride_p,
    v_stride_s,
    N,
    too_many,
    scale_log2,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    QUERIES: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
    KEYS: tl.constexpr,
    PARTS: tl.constexpr,
    MIN_STEPS: tl.constexpr,
):
    """One part of the keys of one tile: QUERIES neighbouring queries with the GROUP heads of one key head."""
    g, b = tl.program_id(1), tl.program_id(2)
    # Long tiles first: the last queries see most keys.
    num_tiles = tl.num_programs(0) // PARTS
    tile, part = num_tiles - 1 - tl.program_id(0) // PARTS, tl.program_id(0) % PARTS
    first_row = tl.load(query_starts + b)
    count = tl.load(query_starts + b + 1) - first_row
    first = tile * QUERIES
    if (first >= count) | (count >= too_many):
        return
    position = tl.load(lengths + b) - count + first
    last_position = position + tl.minimum(QUERIES, count - first) - 1
    STEPS: tl.constexpr = S // KEYS
    num_steps = last_position // KEYS + 1
    num_parts = tl.minimum(PARTS, tl.cdiv(num_steps, MIN_STEPS))
    if part >= num_parts:
        return
    begin, end = num_steps * part // num_parts, num_steps * (part + 1) // num_parts

    row = tl.arange(0, QUERIES * HEADS)
    query, head = row // HEADS, row % HEADS
    valid = (first + query < count) & (head < GROUP)
    d, key = tl.arange(0, D), tl.arange(0, KEYS)
    t = (first_row + first + query).to(tl.int64)
    q_row = q + t * q_stride_t + (g * GROUP + head) * q_stride_h
    q_MD = tl.load(q_row[:, None] + d[None, :], mask=valid[:, None], other=0.0)
    k_tile = k + g * D + key[:, None] * k_stride_s + d[None, :]
    v_tile = v + g * D + key[:, None] * v_stride_s + d[None, :]
    page_table += b * N
    acc_MD = tl.zeros([QUERIES * HEADS, D], tl.float32)
    top_M = tl.full([QUERIES * HEADS], -1.0e30, tl.float32)
    sum_M = tl.zeros([QUERIES * HEADS], tl.float32)

    # Steps whose keys all rows see need no mask.
    num_whole = tl.minimum((position + 1) // KEYS, end)
    for i in range(begin, num_whole):
        page = tl.load(page_table + i // STEPS).to(tl.int64)
        offset = (i % STEPS) * KEYS
        k_ND = tl.load(k_tile + page * k_stride_p + offset * k_stride_s)
        v_ND = tl.load(v_tile + page * v_stride_p + offset * v_stride_s)
        dots = tl.dot(q_MD, tl.trans(k_ND), input_precision="ieee")
        acc_MD, top_M, sum_M = accumulate(dots, scale_log2, v_ND, acc_MD, top_M, sum_M)
    for i in range(tl.maximum(begin, num_whole), end):
        page = tl.load(page_table + i // STEPS).to(tl.int64)
        offset = (i % STEPS) * KEYS
        k_ND = tl.load(k_tile + page * k_stride_p + offset * k_stride_s)
        v_ND = tl.load(v_tile + page * v_stride_p + offset * v_stride_s)
        dots = tl.dot(q_MD, tl.trans(k_ND), input_precision="ieee")
        seen = (i * KEYS + key)[None, :] <= (position + query)[:, None]
        acc_MD, top_M, sum_M = accumulate(tl.where(seen, dots, float("-inf")), scale_log2, v_ND, acc_MD, top_M, sum_M)

    if PARTS == 1:
        result = acc_MD / sum_M[:, None]
    else:
        at = ((b * num_tiles + tile) * tl.num_programs(1) + g).to(tl.int64)
        if not is_last(parts_acc, parts_top, parts_sum, arrived, at, part, num_parts, acc_MD, top_M, sum_M, PARTS):
            return
        result = merged(parts_acc, parts_top, parts_sum, at, num_parts, QUERIES * HEADS, D, PARTS)
    out_row = out + (t * GROUP * tl.num_programs(1) + g * GROUP + head) * D
    tl.store(out_row[:, None] + d[None, :], result.to(out.dtype.element_ty), mask=valid[:, None])
