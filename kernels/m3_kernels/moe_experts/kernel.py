"""Grouped experts in Triton. Legend: as in the reference; M rows of a tile, a row is one token at one of its experts.

Two grouped matrix products. The first gathers its tokens and ends in the activation, the second ends in the token's
weight; a last pass adds up each token's rows in a fixed order. Rows are sorted by expert on the device and tiles are
found by counting, so no count ever travels to the host.

Weights are the left operand of each product and tokens the right one: a single token then costs eight columns of
matrix work and not 64 rows, and weights that are dequantised go from registers into the product. These come in words
of a few inputs each (`dequantise`), so what they are multiplied with is kept by piece.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from m3_kernels.launch import check_same_device, on_device_of
from m3_kernels.moe_experts.dequantise import by_piece, piece, stored_tile
from m3_kernels.moe_experts.reference import check_scales, inputs_per_element

FEW_ROWS = 64
"""With so few rows nearly every row has an expert of its own: they are not sorted, and a tile is one row."""


def tile_sizes(rows: int, num_experts: int, bits: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """How the two products are cut, by rows and by bits of a weight: M rows by N columns in steps of STEP inputs.

    TOGETHER tiles of rows go through the same columns one after the other, while the weights are in L2. An expert's
    last tile often holds only a few rows; with at most SMALL it is a tile of that size.
    """
    stored = bits < 16
    common = {"TOGETHER": 4, "num_warps": 4, "num_stages": 3 if stored else 4, "STEP": 256 if stored else 64}
    if rows <= FEW_ROWS:
        common |= {"M": 16, "SMALL": 16, "TOGETHER": 1}
        return common | {"N": 32}, common | {"N": 64}
    if rows < 128 * num_experts or bits == 32:  # in float32 the widest tiles do not fit a multiprocessor
        common |= {"M": 64 if bits == 16 else 32, "SMALL": 16}
        if not stored:
            return (common | {"N": 64 if bits == 16 else 32},) * 2
        return common | {"N": 32}, common | ({"N": 64, "STEP": 128} if bits == 8 else {"N": 128})
    common |= {"M": 128, "SMALL": 32, "N": 128, "STEP": 128 if stored else 64, "num_warps": 8}
    if stored:  # gate and up: wider tiles spill with Triton 3.9
        return common | {"N": 32, "num_warps": 4}, common
    return common, common | {"N": 256}


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
        by_expert = torch.sort(flat.short(), stable=True)  # in a quarter of the passes
        order = by_expert.indices
        starts = torch.searchsorted(by_expert.values, torch.arange(E + 1, dtype=torch.int16, device=flat.device))
        num_tiles = triton.cdiv(rows, tile_rows) + min(E, rows)
    hidden = torch.empty(rows, width, dtype=x_TC.dtype, device=x_TC.device)
    down = torch.empty(rows, C, dtype=x_TC.dtype, device=x_TC.device)
    if scales is not None:
        x_TC = by_piece(x_TC, 16 // bits)
        w13_EXC, w2_ECI = w13_EXC.view(torch.int16), w2_ECI.view(torch.int16)
    grouping = {
        "FEW": few,
        "EXPERTS": triton.next_power_of_2(E),
        "BITS": bits,
        "PACKED": x_TC.dtype == torch.bfloat16 and x_TC.is_cuda,
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
        _add_up[(T, triton.cdiv(C, 1024))](down, flat, out_TC, C, K=K, N=1024, num_warps=4)
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
    """What a program works on: (expert, its first row, how many rows, column tile). Expert -1: nothing, or elsewhere.

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
    PACKED: tl.constexpr,
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
            K, C, WIDTH, FEW, BITS, PACKED, SMALL, N, STEP,
        )  # fmt: skip
    else:
        _gate_up_tile(
            x, w13, w13_scale, hidden, order, x_stride_t, alpha, limit, e, first, count, column,
            K, C, WIDTH, FEW, BITS, PACKED, M, N, STEP,
        )  # fmt: skip


@triton.jit
def _gate_up_tile(
    x, w13, w13_scale, hidden, order, x_stride_t, alpha, limit, e, first, count, column,
    K: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr, FEW: tl.constexpr, BITS: tl.constexpr,
    PACKED: tl.constexpr, M: tl.constexpr, N: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    rows, valid = _rows(order, first, count, FEW, M)
    PIECES: tl.constexpr = 16 // BITS
    x_row = x + (rows // K).to(tl.int64)[:, None] * x_stride_t
    dtype: tl.constexpr = x.dtype.element_ty
    h = tl.arange(0, N)
    n = column * N + h % (N // PIECES) * PIECES + h // (N // PIECES)  # those of one piece stand together
    w_row = e * 2 * WIDTH + n
    if N == 32:
        # One tile of 64 rows: eight of the gate and the eight of up that go with them take turns, so that one thread
        # gets both results.
        i = tl.arange(0, 2 * N)
        h_both = i // 16 * 8 + i % 8
        n_both = column * N + h_both % (N // PIECES) * PIECES + h_both // (N // PIECES)
        both_row = e * 2 * WIDTH + i // 8 % 2 * WIDTH + n_both
        both_NM = tl.zeros([2 * N, M], tl.float32)
        for at in range(0, C, STEP):
            both_NM = add_products(
                both_NM, w13, w13_scale, both_row, n_both < WIDTH, x_row, valid, at, C, BITS, PACKED, STEP, dtype
            )  # fmt: skip
        gate_SRM, up_SRM = tl.split(both_NM.reshape(N // 8, 2, 8, M).permute(0, 2, 3, 1))
        gate_NM, up_NM = gate_SRM.reshape(N, M), up_SRM.reshape(N, M)
    else:
        gate_NM = tl.zeros([N, M], tl.float32)
        up_NM = tl.zeros([N, M], tl.float32)
        for at in range(0, C, STEP):
            gate_NM, up_NM = _add_both_products(
                gate_NM, up_NM, w13, w13_scale, w_row, n < WIDTH, x_row, valid, at, C, WIDTH, BITS, PACKED, STEP, dtype
            )  # fmt: skip
    gate_NM = tl.minimum(gate_NM, limit)
    up_NM = tl.minimum(tl.maximum(up_NM, -limit), limit)
    result_NM = (gate_NM * tl.sigmoid(alpha * gate_NM) * (up_NM + 1)).to(hidden.dtype.element_ty)
    # The hidden numbers are kept by piece.
    at = rows.to(tl.int64)[:, None] * WIDTH + (n % PIECES * (WIDTH // PIECES) + n // PIECES)[None, :]
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
    PACKED: tl.constexpr,
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
            C, WIDTH, FEW, BITS, PACKED, SMALL, N, STEP,
        )  # fmt: skip
    else:
        _down_tile(
            hidden, w2, w2_scale, down, order, weights, e, first, count, column,
            C, WIDTH, FEW, BITS, PACKED, M, N, STEP,
        )  # fmt: skip


@triton.jit
def _down_tile(
    hidden, w2, w2_scale, down, order, weights, e, first, count, column,
    C: tl.constexpr, WIDTH: tl.constexpr, FEW: tl.constexpr, BITS: tl.constexpr,
    PACKED: tl.constexpr, M: tl.constexpr, N: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    rows, valid = _rows(order, first, count, FEW, M)
    n = column * N + tl.arange(0, N)
    hidden_row = hidden + rows.to(tl.int64)[:, None] * WIDTH
    acc_NM = tl.zeros([N, M], tl.float32)
    for at in range(0, WIDTH, STEP):
        acc_NM = add_products(
            acc_NM, w2, w2_scale, e * C + n, n < C, hidden_row, valid, at, WIDTH, BITS, PACKED, STEP,
            hidden.dtype.element_ty,
        )  # fmt: skip
    acc_NM *= tl.load(weights + rows, mask=valid, other=0.0)[None, :]
    at = rows.to(tl.int64)[:, None] * C + n[None, :]
    tl.store(down + at, tl.trans(acc_NM.to(down.dtype.element_ty)), mask=valid[:, None] & (n < C)[None, :])


@triton.jit
def add_products(
    acc_NM, w, scale, w_row, inside, x_row, valid, at, WIDTH: tl.constexpr, BITS: tl.constexpr, PACKED: tl.constexpr,
    STEP: tl.constexpr, dtype: tl.constexpr,
):  # fmt: skip
    """Add inputs at..at+STEP of some rows of a matrix of WIDTH inputs, times those of some tokens."""
    if BITS == 16:
        w_NC = _plain_tile(w, w_row, inside, at, WIDTH, STEP)
        return _product(w_NC, _piece_of_tokens(x_row, valid, at, 0, WIDTH, STEP, 1), acc_NM)
    w_NW, factor_NW = stored_tile(w, scale, w_row, inside, at, dtype, WIDTH, STEP, BITS)
    for j in tl.static_range(16 // BITS):
        x_MC = _piece_of_tokens(x_row, valid, at, j, WIDTH, STEP, 16 // BITS)
        acc_NM = _product(piece(w_NW, factor_NW, dtype, BITS, j, PACKED), x_MC, acc_NM)
    return acc_NM


@triton.jit
def _add_both_products(
    gate_NM, up_NM, w, scale, gate_row, inside, x_row, valid, at, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    BITS: tl.constexpr, PACKED: tl.constexpr, STEP: tl.constexpr, dtype: tl.constexpr,
):  # fmt: skip
    """The same for two tiles of rows, the second ROWS below the first; each token is read once for both."""
    if BITS == 16:
        x_MC = _piece_of_tokens(x_row, valid, at, 0, WIDTH, STEP, 1)
        gate_NM = _product(_plain_tile(w, gate_row, inside, at, WIDTH, STEP), x_MC, gate_NM)
        return gate_NM, _product(_plain_tile(w, gate_row + ROWS, inside, at, WIDTH, STEP), x_MC, up_NM)
    gate_NW, gate_factor_NW = stored_tile(w, scale, gate_row, inside, at, dtype, WIDTH, STEP, BITS)
    up_NW, up_factor_NW = stored_tile(w, scale, gate_row + ROWS, inside, at, dtype, WIDTH, STEP, BITS)
    for j in tl.static_range(16 // BITS):
        x_MC = _piece_of_tokens(x_row, valid, at, j, WIDTH, STEP, 16 // BITS)
        gate_NM = _product(piece(gate_NW, gate_factor_NW, dtype, BITS, j, PACKED), x_MC, gate_NM)
        up_NM = _product(piece(up_NW, up_factor_NW, dtype, BITS, j, PACKED), x_MC, up_NM)
    return gate_NM, up_NM


@triton.jit
def _plain_tile(w, row, inside, at, WIDTH: tl.constexpr, STEP: tl.constexpr):
    c = at + tl.arange(0, STEP)
    return tl.load(w + row[:, None] * WIDTH + c[None, :], mask=inside[:, None] & (c < WIDTH)[None, :], other=0.0)


@triton.jit
def _product(w_NC, x_MC, acc_NM):
    return tl.dot(w_NC, tl.trans(x_MC), acc_NM, input_precision="ieee")


@triton.jit
def _piece_of_tokens(x_row, valid, at, j, WIDTH: tl.constexpr, STEP: tl.constexpr, PIECES: tl.constexpr):
    """Of the channels at..at+STEP those that stand in the j-th piece."""
    c = at // PIECES + tl.arange(0, STEP // PIECES)
    mask = valid[:, None] & (c < WIDTH // PIECES)[None, :]
    return tl.load(x_row + j * (WIDTH // PIECES) + c[None, :], mask=mask, other=0.0)


@triton.jit
def _add_up(down, flat, out, C, K: tl.constexpr, N: tl.constexpr):
    """out[t] = sum of the token's K rows, always in the same order; those of experts elsewhere were not written."""
    t = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * N + tl.arange(0, N)
    total = tl.zeros([N], tl.float32)
    for i in range(K):
        row = t * K + i
        written = tl.where(tl.load(flat + row) >= 0, C, 0)
        total += tl.load(down + row * C + c, mask=c < written, other=0.0).to(tl.float32)
    tl.store(out + t * C + c, total.to(out.dtype.element_ty), mask=c < C)
