"""Grouped experts in Triton. Legend: as in the reference; M rows of a tile, a row is one token at one of its experts.

Two grouped matrix products. The first gathers its tokens and ends in the activation, the second ends in the token's
weight; a last pass adds up each token's rows in a fixed order. Rows are sorted by expert on the device and tiles are
found by counting, so no count ever travels to the host.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from m3_kernels.launch import check_same_device, on_device_of

FEW_ROWS = 64
"""With so few rows nearly every row has an expert of its own: they are not sorted, and a tile is one row."""
TILES_TOGETHER = 4
"""Tiles of rows that go through the same columns one after the other, while the weights are in L2."""


def moe_experts(
    x_TC: Tensor,
    w13_EXC: Tensor,
    w2_ECI: Tensor,
    expert_ids_TK: Tensor,
    weights_TK: Tensor,
    *,
    alpha: float,
    limit: float,
) -> Tensor:
    """As the reference. Errors: ValueError also for dtypes, strides or sizes that the tiles cannot take."""
    check_same_device(x=x_TC, w13=w13_EXC, w2=w2_ECI, expert_ids=expert_ids_TK, weights=weights_TK)
    T, C = x_TC.shape
    K = expert_ids_TK.shape[1]
    E, X, _ = w13_EXC.shape
    width = X // 2
    if w13_EXC.shape[2] != C or w2_ECI.shape != (E, C, width):
        raise ValueError(f"tokens of {C} channels do not fit w13 {tuple(w13_EXC.shape)} and w2 {tuple(w2_ECI.shape)}")
    if not x_TC.dtype == w13_EXC.dtype == w2_ECI.dtype:
        raise ValueError(f"tokens and weights must be of one dtype: {x_TC.dtype}, {w13_EXC.dtype}, {w2_ECI.dtype}")
    for name, tensor in (("x", x_TC), ("w13", w13_EXC), ("w2", w2_ECI)):
        if tensor.stride(-1) != 1:
            raise ValueError(f"the last axis of {name} must be contiguous, got strides {tensor.stride()}")
    out_TC = torch.empty(T, C, dtype=x_TC.dtype, device=x_TC.device)
    if T == 0:
        return out_TC
    rows = T * K
    few = rows <= FEW_ROWS
    flat = expert_ids_TK.reshape(rows)
    tile_rows = 16 if few else (128 if rows >= 128 * E else 64)
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
    grouping = {"FEW": few, "EXPERTS": triton.next_power_of_2(E), "TOGETHER": 1 if few else TILES_TOGETHER}
    tile = {"M": tile_rows, "N": 64, "STEP": 64, "num_warps": 8 if tile_rows == 128 else 4, "num_stages": 4}
    weights = weights_TK.reshape(rows).float()
    with on_device_of(x_TC):
        _gate_up[(num_tiles * triton.cdiv(width, tile["N"]),)](
            x_TC,
            w13_EXC,
            hidden,
            flat,
            order,
            starts,
            x_TC.stride(0),
            w13_EXC.stride(0),
            w13_EXC.stride(1),
            num_tiles,
            E,
            alpha,
            limit,
            K=K,
            C=C,
            WIDTH=width,
            **grouping,
            **tile,
        )
        tile |= {"N": 128 if tile_rows == 128 else 64}
        _down[(num_tiles * triton.cdiv(C, tile["N"]),)](
            hidden,
            w2_ECI,
            down,
            flat,
            order,
            starts,
            weights,
            w2_ECI.stride(0),
            w2_ECI.stride(1),
            num_tiles,
            E,
            C=C,
            WIDTH=width,
            **grouping,
            **tile,
        )
        _add_up[(T, triton.cdiv(C, 1024))](down, out_TC, C, K=K, N=1024, num_warps=4)
    return out_TC


@triton.jit
def _tile(
    pid,
    flat,
    order,
    starts,
    num_tiles,
    num_columns,
    E,
    M: tl.constexpr,
    FEW: tl.constexpr,
    EXPERTS: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    """Which rows a program works on: (expert, rows, which of them are valid, column tile). Expert -1: none."""
    together = pid // (TOGETHER * num_columns) * TOGETHER
    height = tl.minimum(num_tiles - together, TOGETHER)
    inside = pid % (TOGETHER * num_columns)
    tile, column = together + inside % height, inside // height
    i = tl.arange(0, M)
    if FEW:
        return tl.load(flat + tile), tile + i, i < 1, column
    expert = tl.arange(0, EXPERTS)
    start = tl.load(starts + expert, mask=expert < E, other=0).to(tl.int32)
    end = tl.load(starts + expert + 1, mask=expert < E, other=0).to(tl.int32)
    tiles_of = tl.where(expert < E, (end - start + M - 1) // M, 0)
    tiles_until = tl.cumsum(tiles_of, 0)
    e = tl.sum((tiles_until <= tile).to(tl.int32), 0)
    mine = expert == e
    first = tl.sum(tl.where(mine, start + (tile - (tiles_until - tiles_of)) * M, 0), 0)
    last = tl.sum(tl.where(mine, end, 0), 0)
    valid = first + i < last
    rows = tl.load(order + first + i, mask=valid, other=0).to(tl.int32)
    return tl.where(e < E, e, -1).to(tl.int64), rows, valid, column


@triton.jit
def _gate_up(
    x,
    w13,
    hidden,
    flat,
    order,
    starts,
    x_stride_t,
    w_stride_e,
    w_stride_x,
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
    M: tl.constexpr,
    N: tl.constexpr,
    STEP: tl.constexpr,
):
    """hidden[row] = activation of the row's token by its expert's gate and up matrices."""
    columns: tl.constexpr = (WIDTH + N - 1) // N
    e, rows, valid, column = _tile(
        tl.program_id(0), flat, order, starts, num_tiles, columns, E, M, FEW, EXPERTS, TOGETHER
    )
    if e < 0:
        return
    n, c = column * N + tl.arange(0, N), tl.arange(0, STEP)
    x_tile = x + (rows // K).to(tl.int64)[:, None] * x_stride_t + c[None, :]
    gate_tile = w13 + e * w_stride_e + n[:, None] * w_stride_x + c[None, :]
    up_tile = gate_tile + WIDTH * w_stride_x
    gate_MN = tl.zeros([M, N], tl.float32)
    up_MN = tl.zeros([M, N], tl.float32)
    for at in range(0, C, STEP):
        inside = at + c < C
        x_MC = tl.load(x_tile + at, mask=valid[:, None] & inside[None, :], other=0.0)
        mask = (n < WIDTH)[:, None] & inside[None, :]
        gate_MN = tl.dot(x_MC, tl.trans(tl.load(gate_tile + at, mask=mask, other=0.0)), gate_MN)
        up_MN = tl.dot(x_MC, tl.trans(tl.load(up_tile + at, mask=mask, other=0.0)), up_MN)
    gate_MN = tl.minimum(gate_MN, limit)
    up_MN = tl.minimum(tl.maximum(up_MN, -limit), limit)
    result = gate_MN * tl.sigmoid(alpha * gate_MN) * (up_MN + 1)
    at = rows.to(tl.int64)[:, None] * WIDTH + n[None, :]
    tl.store(hidden + at, result.to(hidden.dtype.element_ty), mask=valid[:, None] & (n < WIDTH)[None, :])


@triton.jit
def _down(
    hidden,
    w2,
    down,
    flat,
    order,
    starts,
    weights,
    w_stride_e,
    w_stride_c,
    num_tiles,
    E,
    C: tl.constexpr,
    WIDTH: tl.constexpr,
    FEW: tl.constexpr,
    EXPERTS: tl.constexpr,
    TOGETHER: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    STEP: tl.constexpr,
):
    """down[row] = hidden[row] through the expert's last matrix, times the weight of the row."""
    columns: tl.constexpr = (C + N - 1) // N
    e, rows, valid, column = _tile(
        tl.program_id(0), flat, order, starts, num_tiles, columns, E, M, FEW, EXPERTS, TOGETHER
    )
    if e < 0:
        return
    n, i = column * N + tl.arange(0, N), tl.arange(0, STEP)
    hidden_tile = hidden + rows.to(tl.int64)[:, None] * WIDTH + i[None, :]
    w_tile = w2 + e * w_stride_e + n[:, None] * w_stride_c + i[None, :]
    acc_MN = tl.zeros([M, N], tl.float32)
    for at in range(0, WIDTH, STEP):
        inside = at + i < WIDTH
        h_MI = tl.load(hidden_tile + at, mask=valid[:, None] & inside[None, :], other=0.0)
        w_NI = tl.load(w_tile + at, mask=(n < C)[:, None] & inside[None, :], other=0.0)
        acc_MN = tl.dot(h_MI, tl.trans(w_NI), acc_MN)
    acc_MN *= tl.load(weights + rows, mask=valid, other=0.0)[:, None]
    at = rows.to(tl.int64)[:, None] * C + n[None, :]
    tl.store(down + at, acc_MN.to(down.dtype.element_ty), mask=valid[:, None] & (n < C)[None, :])


@triton.jit
def _add_up(down, out, C, K: tl.constexpr, N: tl.constexpr):
    """out[t] = sum of the token's K rows, always in the same order."""
    t = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * N + tl.arange(0, N)
    total = tl.zeros([N], tl.float32)
    for i in range(K):
        total += tl.load(down + (t * K + i) * C + c, mask=c < C, other=0.0).to(tl.float32)
    tl.store(out + t * C + c, total.to(out.dtype.element_ty), mask=c < C)
