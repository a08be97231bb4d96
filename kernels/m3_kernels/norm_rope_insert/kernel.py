"""Head norm, partial rotary embedding and cache insertion in one Triton pass. Legend: as in the reference.

A program reads a few heads of one token and writes each where it belongs: queries to the results, keys, values and
the index key into the cache. A head is three tiles: the first and the second elements of the rotated pairs, and the
rest, so that a thread holds both elements of its pairs.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from m3_kernels.launch import check_power_of_two, check_same_device, on_device_of
from m3_kernels.norm_rope_insert.reference import check_channels

HEADS, WARPS = 8, 2
"""Heads of one program."""


def norm_rope_insert(
    projected_TX: Tensor,
    norms: tuple[Tensor, ...],
    cos_TF: Tensor,
    sin_TF: Tensor,
    slots_T: Tensor,
    k_PSGD: Tensor,
    v_PSGD: Tensor,
    index_k_PSD: Tensor | None,
    *,
    num_heads: int,
    eps: float,
) -> tuple[Tensor, Tensor | None]:
    """As the reference. Errors: ValueError also for strides or sizes that the tiles cannot take."""
    T, X = projected_TX.shape
    G, D = k_PSGD.shape[2:]
    check_channels(X, norms, G, D, num_heads, index_k_PSD is not None)
    check_power_of_two(head_dim=D)
    check_same_device(projected=projected_TX, norms=norms[0], cos=cos_TF, slots=slots_T, k=k_PSGD, v=v_PSGD)
    if len(norms) > 1:
        raise ValueError(f"index heads must have the size of the others, {D}, got {norms[1].shape[1]}")
    caches = [k_PSGD, v_PSGD, *([] if index_k_PSD is None else [index_k_PSD])]
    if projected_TX.stride(1) != 1 or not all(t.is_contiguous() for t in (*norms, *caches, cos_TF, sin_TF)):
        raise ValueError("norms, angles and caches must be contiguous, and the projection along its channels")
    R = 0 if index_k_PSD is None else len(norms[0]) - num_heads - G - 1
    q_THD = torch.empty(T, num_heads, D, dtype=projected_TX.dtype, device=projected_TX.device)
    index_q_TRD = torch.empty(T, R, D, dtype=projected_TX.dtype, device=projected_TX.device)
    if T == 0:
        return q_THD, None if index_k_PSD is None else index_q_TRD
    with on_device_of(projected_TX):
        F = cos_TF.shape[1]
        _norm_rope_insert[(T * triton.cdiv(X // D, HEADS),)](
            projected_TX,
            norms[0],
            cos_TF,
            sin_TF,
            slots_T,
            q_THD,
            index_q_TRD,
            k_PSGD,
            v_PSGD,
            index_q_TRD if index_k_PSD is None else index_k_PSD,
            projected_TX.stride(0),
            eps,
            H=num_heads,
            G=G,
            R=R,
            INDEX=index_k_PSD is not None,
            F=F,
            F_TILE=triton.next_power_of_2(F),
            D=D,
            REST=triton.next_power_of_2(max(1, D - 2 * F)),
            ROWS=HEADS,
            num_warps=WARPS,
        )
    return q_THD, None if index_k_PSD is None else index_q_TRD


@triton.jit
def _norm_rope_insert(
    projected,
    norms,
    cos,
    sin,
    slots,
    q_out,
    index_q_out,
    k_cache,
    v_cache,
    index_cache,
    stride_t,
    eps,
    H: tl.constexpr,
    G: tl.constexpr,
    R: tl.constexpr,
    INDEX: tl.constexpr,
    F: tl.constexpr,
    F_TILE: tl.constexpr,
    D: tl.constexpr,
    REST: tl.constexpr,
    ROWS: tl.constexpr,
):
    """ROWS heads of one token, in the projection's order: queries, keys, index queries, the index key, values."""
    first_value: tl.constexpr = H + G + R + INDEX
    PARTS: tl.constexpr = (first_value + G + ROWS - 1) // ROWS  # neighbours share a token, whose channels lie together
    part, t = tl.program_id(0) % PARTS, (tl.program_id(0) // PARTS).to(tl.int64)
    head = part * ROWS + tl.arange(0, ROWS)
    normed = head < first_value
    pair, rest = tl.arange(0, F_TILE), tl.arange(0, REST)
    in_pair, in_rest = (pair < F)[None, :], (rest < D - 2 * F)[None, :]
    w_one, w_two, w_rest = _thirds(norms + head * D, normed, pair, rest, in_pair, in_rest, F)
    valid = head < first_value + G
    x_one, x_two, x_rest = _thirds(projected + t * stride_t + head * D, valid, pair, rest, in_pair, in_rest, F)
    squares = tl.sum(x_one * x_one, 1) + tl.sum(x_two * x_two, 1) + tl.sum(x_rest * x_rest, 1)
    inverse = (1 / tl.sqrt(squares / D + eps))[:, None]
    y_one, y_two = x_one * inverse * (1 + w_one), x_two * inverse * (1 + w_two)
    y_rest = x_rest * inverse * (1 + w_rest)
    angle = t * F + pair
    turned = pair < F
    cosine = tl.load(cos + angle, mask=turned, other=1.0)[None, :]
    sine = tl.load(sin + angle, mask=turned, other=0.0)[None, :]
    y_one, y_two = y_one * cosine - y_two * sine, y_two * cosine + y_one * sine
    q_row = q_out + (t * H + head) * D
    _store_thirds(q_row, y_one, y_two, y_rest, valid & (head < H), pair, rest, in_pair, in_rest, F)
    if (part + 1) * ROWS > H:
        slot = tl.load(slots + t)
        is_k = valid & (head >= H) & (head < H + G)
        k_row = k_cache + (slot * G + head - H) * D
        _store_thirds(k_row, y_one, y_two, y_rest, is_k, pair, rest, in_pair, in_rest, F)
        if INDEX:
            is_index_q = valid & (head >= H + G) & (head < H + G + R)
            index_q_row = index_q_out + (t * R + head - (H + G)) * D
            _store_thirds(index_q_row, y_one, y_two, y_rest, is_index_q, pair, rest, in_pair, in_rest, F)
            is_index_k = valid & (head == H + G + R)
            index_k_row = index_cache + slot * D + head * 0
            _store_thirds(index_k_row, y_one, y_two, y_rest, is_index_k, pair, rest, in_pair, in_rest, F)
        is_v = valid & (head >= first_value)
        v_row = v_cache + (slot * G + head - first_value) * D
        _store_thirds(v_row, x_one, x_two, x_rest, is_v, pair, rest, in_pair, in_rest, F)


@triton.jit
def _thirds(row, valid, pair, rest, in_pair, in_rest, F: tl.constexpr):
    """In float32: the first elements of the pairs of rows, the second elements, the rest."""
    in_pair, in_rest = in_pair & valid[:, None], in_rest & valid[:, None]
    one = tl.load(row[:, None] + pair[None, :], mask=in_pair, other=0.0)
    two = tl.load(row[:, None] + F + pair[None, :], mask=in_pair, other=0.0)
    others = tl.load(row[:, None] + 2 * F + rest[None, :], mask=in_rest, other=0.0)
    return one.to(tl.float32), two.to(tl.float32), others.to(tl.float32)


@triton.jit
def _store_thirds(row, one, two, others, valid, pair, rest, in_pair, in_rest, F: tl.constexpr):
    dtype: tl.constexpr = row.dtype.element_ty
    in_pair, in_rest = in_pair & valid[:, None], in_rest & valid[:, None]
    tl.store(row[:, None] + pair[None, :], one.to(dtype), mask=in_pair)
    tl.store(row[:, None] + F + pair[None, :], two.to(dtype), mask=in_pair)
    tl.store(row[:, None] + 2 * F + rest[None, :], others.to(dtype), mask=in_rest)
