"""Sparse attention of few queries in Triton. Legend: as in the reference; W parts that a row's work is split into.

Attending to a few blocks is short work, so it is spread over many programs; `softmax` says how they come together.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from m3_kernels.batch import DECODE_QUERIES, AttentionBatch
from m3_kernels.launch import check_attention, on_device_of
from m3_kernels.softmax import accumulate, arrival_counters, is_last, merged

PROGRAMS = 132
"""Parts are made until there are about so many programs: one a multiprocessor."""
MAX_PARTS = 16
KEYS = 64
"""Keys of one step."""


def sparse_decode(
    q_THD: Tensor, k_PSGD: Tensor, v_PSGD: Tensor, blocks_TGK: Tensor, batch: AttentionBatch, *, scale: float
) -> Tensor:
    """As the reference. Errors: ValueError also for dtypes, strides or sizes that the tiles cannot take."""
    check_attention(q_THD, k_PSGD, v_PSGD, batch.page_table_BN, blocks_TGK)
    T, H, D = q_THD.shape
    _, S, G, _ = k_PSGD.shape
    if batch.max_queries > DECODE_QUERIES:
        raise ValueError(f"sparse_decode takes {DECODE_QUERIES} new tokens a sequence, got {batch.max_queries}")
    out_THD = torch.empty(T, H, D, dtype=q_THD.dtype, device=q_THD.device)
    if T == 0:
        return out_THD
    B, N = batch.page_table_BN.shape
    K = blocks_TGK.shape[2]
    heads = max(16, triton.next_power_of_2(H // G))
    keys = min(KEYS, S)
    rows = B * batch.max_queries * G
    steps = K * (S // keys)
    parts = min(MAX_PARTS, 1 << (steps.bit_length() - 1), triton.next_power_of_2(triton.cdiv(PROGRAMS, rows)))
    parts_acc = torch.empty(rows, parts, heads, D, dtype=torch.float32, device=q_THD.device)
    parts_top = torch.empty(2, rows, parts, heads, dtype=torch.float32, device=q_THD.device)
    with on_device_of(q_THD):
        _attend_few[(parts, batch.max_queries * G, B)](
            q_THD,
            k_PSGD,
            v_PSGD,
            out_THD,
            blocks_TGK,
            parts_acc,
            parts_top[0],
            parts_top[1],
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
            scale * 1.4426950408889634,
            G=G,
            GROUP=H // G,
            HEADS=heads,
            D=D,
            S=S,
            K=K,
            KEYS=keys,
            PARTS=parts,
            num_warps=4,
            num_stages=3,
        )
    return out_THD


@triton.jit
def _attend_few(
    q,
    k,
    v,
    out,
    blocks,
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
    scale_log2,
    G: tl.constexpr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
    K: tl.constexpr,
    KEYS: tl.constexpr,
    PARTS: tl.constexpr,
):
    """One part of one row and key head; the last part to arrive merges all."""
    part, b = tl.program_id(0), tl.program_id(2)
    query, g = tl.program_id(1) // G, tl.program_id(1) % G
    first_row = tl.load(query_starts + b)
    count = tl.load(query_starts + b + 1) - first_row
    if query >= count:
        return
    position = tl.load(lengths + b) - count + query
    t = (first_row + query).to(tl.int64)
    blocks += (t * G + g) * K
    page_table += b * N
    head, d, key = tl.arange(0, HEADS), tl.arange(0, D), tl.arange(0, KEYS)
    q_row = q + t * q_stride_t + (g * GROUP + head) * q_stride_h
    q_HD = tl.load(q_row[:, None] + d[None, :], mask=(head < GROUP)[:, None], other=0.0)
    k_tile = k + g * D + key[:, None] * k_stride_s + d[None, :]
    v_tile = v + g * D + key[:, None] * v_stride_s + d[None, :]
    acc_HD = tl.zeros([HEADS, D], tl.float32)
    top_H = tl.full([HEADS], -1.0e30, tl.float32)
    sum_H = tl.zeros([HEADS], tl.float32)
    STEPS: tl.constexpr = S // KEYS
    # Neighbouring steps go to different parts, so that short lists are spread over all of them.
    for i in range(part, K * STEPS, PARTS):
        n = tl.load(blocks + i // STEPS)
        offset = (i % STEPS) * KEYS
        seen = key < tl.where(n >= 0, position + 1 - n * S - offset, 0)
        page = tl.load(page_table + tl.maximum(n, 0)).to(tl.int64)
        k_ND = tl.load(k_tile + page * k_stride_p + offset * k_stride_s, mask=seen[:, None], other=0.0)
        v_ND = tl.load(v_tile + page * v_stride_p + offset * v_stride_s, mask=seen[:, None], other=0.0)
        dots = tl.where(seen[None, :], tl.dot(q_HD, tl.trans(k_ND), input_precision="ieee"), float("-inf"))
        acc_HD, top_H, sum_H = accumulate(dots, scale_log2, v_ND, acc_HD, top_H, sum_H)

    row = (b * tl.num_programs(1) + tl.program_id(1)).to(tl.int64)
    if PARTS == 1:
        result = acc_HD / sum_H[:, None]
    else:
        if not is_last(parts_acc, parts_top, parts_sum, arrived, row, part, PARTS, acc_HD, top_H, sum_H, PARTS):
            return
        result = merged(parts_acc, parts_top, parts_sum, row, PARTS, HEADS, D, PARTS)
    out_row = out + (t * G * GROUP + g * GROUP + head) * D
    tl.store(out_row[:, None] + d[None, :], result.to(out.dtype.element_ty), mask=(head < GROUP)[:, None])
