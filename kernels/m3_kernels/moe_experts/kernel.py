"""Grouped experts in Triton. Legend: as in the reference; M rows of a tile, a row is one token at one of its experts.

Two grouped matrix products. The first gathers its tokens and ends in the activation, the second ends in the token's
weight; a last pass adds up each token's rows in a fixed order. Rows are sorted by expert on the device and tiles are
found by counting, so no count ever travels to the host.

Weights are the left operand of each product and tokens the right one: a single token then costs eight columns of
matrix work and not 64 rows, and weights that are dequantised go from registers into the product.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from m3_kernels.launch import check_same_device, on_device_of
from m3_kernels.moe_experts.dequantise import weights_of
from m3_kernels.moe_experts.reference import check_scales, inputs_per_element

FEW_ROWS = 64
"""With so few rows nearly every row has an expert of its own: they are not sorted, and a tile is one row."""


def tile_sizes(rows: int, num_experts: int, bits: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """How the two products are cut, by rows and by bits of a weight: M rows by N columns in steps of STEP inputs.

    TOGETHER tiles of rows go through the same columns one after the other, while the weights are in L2. An expert's
    last tile often holds only a few rows; with at most SMALL it is a tile of that size.
    """
    if rows <= FEW_ROWS:
        step = 128 if bits == 8 else 64
        both = {"M": 16, "SMALL": 16, "N": 64, "STEP": step, "TOGETHER": 1, "num_warps": 4}
        both["num_stages"] = 3 if bits == 8 else 4
        return both, both
    if rows < 128 * num_experts or bits == 32:  # in float32 the widest tiles do not fit a multiprocessor
        step = 128 if bits == 8 else 64
        both = {"M": 64 if bits == 16 else 32, "SMALL": 16, "N": 32 if bits == 32 else 64, "STEP": step}
        both |= {"TOGETHER": 4, "num_warps": 4}
        both["num_stages"] = 3 if bits == 8 else 4
        return both, both
    up = {"M": 128, "SMALL": 32, "N": 128, "STEP": 64, "TOGETHER": 4, "num_warps": 8, "num_stages": 4}
    return up, {**up, "N": 256 if bits == 16 else 128}


def moe_experts(
    x_TC: Tensor,
    w13_EXC: Tensor,
    w2_ECI: Tensor,
    expert_ids_TK: Tensor,
    weights_TK: Tensor,
    *,
    alpha: float,
    limit: float,
    scales: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """As the reference. Errors: ValueError also for dtypes, strides or sizes that the tiles cannot take."""
    check_same_device(x=x_TC, w13=w13_EXC, w2=w2_ECI, expert_ids=expert_ids_TK, weights=weights_TK)
    check_scales(w13_EXC, w2_ECI, scales)
    T, C = x_TC.shape
    K = expert_ids_TK.shape[1]
    E, X, _ = w13_EXC.shape
    width = X // 2
    per_element = inputs_per_element(w13_EXC)
    if w13_EXC.shape[2] * per_element != C or w2_ECI.shape != (E, C, width // per_element):
        raise ValueError(f"tokens of {C} channels do not fit w13 {tuple(w13_EXC.shape)} and w2 {tuple(w2_ECI.shape)}")
    if scales is None and not x_TC.dtype == w13_EXC.dtype == w2_ECI.dtype:
        raise ValueError(f"tokens and weights must be of one dtype: {x_TC.dtype}, {w13_EXC.dtype}, {w2_ECI.dtype}")
    if x_TC.stride(1) != 1 or not (w13_EXC.is_contiguous() and w2_ECI.is_contiguous()):
        raise ValueError("w13 and w2 must be contiguous, and x along its channels")
    out_TC = torch.empty(T, C, dtype=x_TC.dtype, device=x_TC.device)
    if T == 0:
        return out_TC
    rows = T * K
    few = rows <= FEW_ROWS
    flat = expert_ids_TK.reshape(rows)
    bits = 16 if scales is None else 8 // per_element
    up_tile, down_tile = tile_sizes(rows, E, 8 * w13_EXC.element_size() if scales is None else bits)
    tile_rows = up_tile["M"]
    if few:
        order = starts = flat  # neither is read
        num_tiles = rows
    else:
        by_expert = torch.sort(flat, stable=True)
        order = by_expert.indices
        starts = torch.searchsorted(by_expert.values, torch.arange(E + 1, device=flat.device))
        num_tiles = triton.cdiv(rows, tile_rows) + min(E, rows)
    hidden = torch.empty(rows, width, dtype=x_TC.dtype, device=x_TC.device)
    down = torch.empty(rows, C, dtype=x_TC.dtype, device=x_TC.device)
    together = bits == 8 and C % 128 == 0 and width % 128 == 0
    if scales is not None and together:  # four neighbouring scales as one number
        scales = scales[0].view(torch.int32), scales[1].view(torch.int32)
    grouping = {
        "FEW": few,
        "EXPERTS": triton.next_power_of_2(E),
        "BITS": bits,
        "SCALES": 4 if together else 1,
        "PTX": x_TC.dtype == torch.bfloat16 and x_TC.is_cuda,
    }
    w13_scale, w2_scale = (w13_EXC, w2_ECI) if scales is None else scales  # not read where there are none
    weights = weights_TK.reshape(rows).float()
    with on_device_of(x_TC):
        _gate_up[(num_tiles * triton.cdiv(width, up_tile["N"]),)](
            x_TC,
            w13_EXC,
            w13_scale,
            hidden,
            flat,
            order,
            starts,
            x_TC.stride(0),
            num_tiles,
            E,
            alpha,
            limit,
            K=K,
            C=C,
            WIDTH=width,
            **grouping,
            **up_tile,
        )
        _down[(num_tiles * triton.cdiv(C, down_tile["N"]),)](
            hidden,
            w2_ECI,
            w2_scale,
            down,
            flat,
            order,
            starts,
            weights,
            num_tiles,
            E,
            C=C,
            WIDTH=width,
            **grouping,
            **down_tile,
        )
        _add_up[(T, triton.cdiv(C, 1024))](down, out_TC, C, K=K, N=1024, num_warps=4)
    return out_TC


@triton.jit
def _tile(
    flat,
    starts,
    num_tiles,
    num_columns,
    E,
    M: tl.constexpr,
    FEW: tl.constexpr,
    EXPERTS: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    """What a program works on: (expert, its first row, how many rows, column tile). Expert -1: nothing.

    Rows are counted in the order of experts; where they are FEW, in their own order.
    """
    pid = tl.program_id(0)
    together = pid // (TOGETHER * num_columns) * TOGETHER
    height = tl.minimum(num_tiles - together, TOGETHER)
    inside = pid % (TOGETHER * num_columns)
    tile, column = together + inside % height, inside // height
    if FEW:
        return tl.load(flat + tile), tile, 1, column
    expert = tl.arange(0, EXPERTS)
    start = tl.load(starts + expert, mask=expert < E, other=0).to(tl.int32)
    end = tl.load(starts + expert + 1, mask=expert < E, other=0).to(tl.int32)
    tiles_of = tl.where(expert < E, (end - start + M - 1) // M, 0)
    tiles_until = tl.cumsum(tiles_of, 0)
    e = tl.sum((tiles_until <= tile).to(tl.int32), 0)
    mine = expert == e
    first = tl.sum(tl.where(mine, start + (tile - (tiles_until - tiles_of)) * M, 0), 0)
    last = tl.sum(tl.where(mine, end, 0), 0)
    return tl.where(e < E, e, -1).to(tl.int64), first, tl.minimum(last - first, M), column


@triton.jit
def _rows(order, first, count, FEW: tl.constexpr, M: tl.constexpr):
    """(the tile's rows, which of them there are)."""
    i = tl.arange(0, M)
    if FEW:
        return first + i, i < count
    return tl.load(order + first + i, mask=i < count, other=0).to(tl.int32), i < count


@triton.jit
def _gate_up(
    x,
    w13,
    w13_scale,
    hidden,
    flat,
    order,
    starts,
    x_stride_t,
    num_tiles,
    E,
    alpha,
    limit,
    K: tl.constexpr,
    C: tl.constexpr,
    WIDTH: tl.constexpr,
    FEW: tl.constexpr,
    EXPERTS: tl.constexpr,
    TOGETHER: tl.constexpr,
    BITS: tl.constexpr,
    SCALES: tl.constexpr,
    PTX: tl.constexpr,
    M: tl.constexpr,
    SMALL: tl.constexpr,
    N: tl.constexpr,
    STEP: tl.constexpr,
):
    """hidden[row] = activation of the row's token by its expert's gate and up matrices."""
    columns: tl.constexpr = (WIDTH + N - 1) // N
    e, first, count, column = _tile(flat, starts, num_tiles, columns, E, M, FEW, EXPERTS, TOGETHER)
    if e < 0:
        return
    if SMALL < M and count <= SMALL:
        _gate_up_tile(
            x, w13, w13_scale, hidden, order, x_stride_t, alpha, limit, e, first, count, column,
            K, C, WIDTH, FEW, BITS, SCALES, PTX, SMALL, N, STEP,
        )  # fmt: skip
    else:
        _gate_up_tile(
            x, w13, w13_scale, hidden, order, x_stride_t, alpha, limit, e, first, count, column,
            K, C, WIDTH, FEW, BITS, SCALES, PTX, M, N, STEP,
        )  # fmt: skip


@triton.jit
def _gate_up_tile(
    x, w13, w13_scale, hidden, order, x_stride_t, alpha, limit, e, first, count, column,
    K: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr, FEW: tl.constexpr, BITS: tl.constexpr,
    SCALES: tl.constexpr, PTX: tl.constexpr, M: tl.constexpr, N: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    rows, valid = _rows(order, first, count, FEW, M)
    n, c = column * N + tl.arange(0, N), tl.arange(0, STEP)
    x_tile = x + (rows // K).to(tl.int64)[:, None] * x_stride_t + c[None, :]
    gate_row, up_row = e * 2 * WIDTH + n, e * 2 * WIDTH + WIDTH + n
    gate_NM = tl.zeros([N, M], tl.float32)
    up_NM = tl.zeros([N, M], tl.float32)
    for at in range(0, C, STEP):
        x_MC = tl.load(x_tile + at, mask=valid[:, None] & (at + c < C)[None, :], other=0.0)
        gate_NC = weights_of(w13, w13_scale, gate_row, n < WIDTH, at, x_MC.dtype, C, STEP, BITS, SCALES, PTX)
        up_NC = weights_of(w13, w13_scale, up_row, n < WIDTH, at, x_MC.dtype, C, STEP, BITS, SCALES, PTX)
        gate_NM = tl.dot(gate_NC, tl.trans(x_MC), gate_NM, input_precision="ieee")
        up_NM = tl.dot(up_NC, tl.trans(x_MC), up_NM, input_precision="ieee")
    gate_NM = tl.minimum(gate_NM, limit)
    up_NM = tl.minimum(tl.maximum(up_NM, -limit), limit)
    result_NM = (gate_NM * tl.sigmoid(alpha * gate_NM) * (up_NM + 1)).to(hidden.dtype.element_ty)
    at = rows.to(tl.int64)[:, None] * WIDTH + n[None, :]
    tl.store(hidden + at, tl.trans(result_NM), mask=valid[:, None] & (n < WIDTH)[None, :])


@triton.jit
def _down(
    hidden,
    w2,
    w2_scale,
    down,
    flat,
    order,
    starts,
    weights,
    num_tiles,
    E,
    C: tl.constexpr,
    WIDTH: tl.constexpr,
    FEW: tl.constexpr,
    EXPERTS: tl.constexpr,
    TOGETHER: tl.constexpr,
    BITS: tl.constexpr,
    SCALES: tl.constexpr,
    PTX: tl.constexpr,
    M: tl.constexpr,
    SMALL: tl.constexpr,
    N: tl.constexpr,
    STEP: tl.constexpr,
):
    """down[row] = hidden[row] through the expert's last matrix, times the weight of the row."""
    columns: tl.constexpr = (C + N - 1) // N
    e, first, count, column = _tile(flat, starts, num_tiles, columns, E, M, FEW, EXPERTS, TOGETHER)
    if e < 0:
        return
    if SMALL < M and count <= SMALL:
        _down_tile(
            hidden, w2, w2_scale, down, order, weights, e, first, count, column,
            C, WIDTH, FEW, BITS, SCALES, PTX, SMALL, N, STEP,
        )  # fmt: skip
    else:
        _down_tile(
            hidden, w2, w2_scale, down, order, weights, e, first, count, column,
            C, WIDTH, FEW, BITS, SCALES, PTX, M, N, STEP,
        )  # fmt: skip


@triton.jit
def _down_tile(
    hidden, w2, w2_scale, down, order, weights, e, first, count, column,
    C: tl.constexpr, WIDTH: tl.constexpr, FEW: tl.constexpr, BITS: tl.constexpr,
    SCALES: tl.constexpr, PTX: tl.constexpr, M: tl.constexpr, N: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    rows, valid = _rows(order, first, count, FEW, M)
    n, i = column * N + tl.arange(0, N), tl.arange(0, STEP)
    hidden_tile = hidden + rows.to(tl.int64)[:, None] * WIDTH + i[None, :]
    w_row = e * C + n
    acc_NM = tl.zeros([N, M], tl.float32)
    for at in range(0, WIDTH, STEP):
        h_MI = tl.load(hidden_tile + at, mask=valid[:, None] & (at + i < WIDTH)[None, :], other=0.0)
        w_NI = weights_of(w2, w2_scale, w_row, n < C, at, h_MI.dtype, WIDTH, STEP, BITS, SCALES, PTX)
        acc_NM = tl.dot(w_NI, tl.trans(h_MI), acc_NM, input_precision="ieee")
    acc_NM *= tl.load(weights + rows, mask=valid, other=0.0)[None, :]
    at = rows.to(tl.int64)[:, None] * C + n[None, :]
    tl.store(down + at, tl.trans(acc_NM.to(down.dtype.element_ty)), mask=valid[:, None] & (n < C)[None, :])


@triton.jit
def _add_up(down, out, C, K: tl.constexpr, N: tl.constexpr):
    """out[t] = sum of the token's K rows, always in the same order."""
    t = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * N + tl.arange(0, N)
    total = tl.zeros([N], tl.float32)
    for i in range(K):
        total += tl.load(down + (t * K + i) * C + c, mask=c < C, other=0.0).to(tl.float32)
    tl.store(out + t * C + c, total.to(out.dtype.element_ty), mask=c < C)
