"""Head norm, partial rotary embedding and cache insertion in one Triton pass. Legend: as in the reference.

A program reads a few heads of one token and writes each where it belongs: queries to the results, keys, values and the
index key into the cache.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from m3_kernels.launch import check_power_of_two, check_same_device, on_device_of
from m3_kernels.norm_rope_insert.reference import check_channels

HEADS = 16
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
        _norm_rope_insert[(T, triton.cdiv(X // D, HEADS))](
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
            F=cos_TF.shape[1],
            D=D,
            ROWS=HEADS,
            num_warps=4,
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
    D: tl.constexpr,
    ROWS: tl.constexpr,
):
    """ROWS heads of one token, in the projection's order: queries, keys, index queries, the index key, values."""
    t = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    first_index: tl.constexpr = H + G
    first_value: tl.constexpr = H + G + R + INDEX
    normed = head < first_value
    valid = head < first_value + G
    d = tl.arange(0, D)
    x_row = projected + t * stride_t + head * D
    x_RD = tl.load(x_row[:, None] + d[None, :], mask=valid[:, None], other=0.0)
    x = x_RD.to(tl.float32)
    inverse = 1 / tl.sqrt(tl.sum(x * x, 1) / D + eps)
    weight = tl.load(norms + head[:, None] * D + d[None, :], mask=normed[:, None], other=0.0).to(tl.float32)
    y = x * inverse[:, None] * (1 + weight)
    # The other element of each rotated pair, read again: it is in the cache.
    other = tl.where(d < F, d + F, tl.where(d < 2 * F, d - F, d))
    x_other = tl.load(x_row[:, None] + other[None, :], mask=normed[:, None], other=0.0).to(tl.float32)
    w_other = tl.load(norms + head[:, None] * D + other[None, :], mask=normed[:, None], other=0.0).to(tl.float32)
    y_other = x_other * inverse[:, None] * (1 + w_other)
    turned = d < 2 * F
    cosine = tl.load(cos + t * F + d % F, mask=turned, other=1.0)
    sine = tl.load(sin + t * F + d % F, mask=turned, other=0.0)
    sine = tl.where(d < F, -sine, sine)
    y = y * cosine[None, :] + y_other * sine[None, :]

    slot = tl.load(slots + t)
    is_q = head < H
    q_at = (t * H + head)[:, None] * D + d[None, :]
    tl.store(q_out + q_at, y.to(q_out.dtype.element_ty), mask=is_q[:, None])
    is_k = (head >= H) & (head < first_index)
    k_at = (slot * G + head - H)[:, None] * D + d[None, :]
    tl.store(k_cache + k_at, y.to(k_cache.dtype.element_ty), mask=is_k[:, None])
    if INDEX:
        is_index_q = (head >= first_index) & (head < first_index + R)
        index_q_at = (t * R + head - first_index)[:, None] * D + d[None, :]
        tl.store(index_q_out + index_q_at, y.to(index_q_out.dtype.element_ty), mask=is_index_q[:, None])
        is_index_k = head == first_index + R
        index_k_at = slot * D + tl.zeros([ROWS], tl.int32)[:, None] + d[None, :]
        tl.store(index_cache + index_k_at, y.to(index_cache.dtype.element_ty), mask=is_index_k[:, None])
    is_v = (head >= first_value) & valid
    v_at = (slot * G + head - first_value)[:, None] * D + d[None, :]
    tl.store(v_cache + v_at, x_RD.to(v_cache.dtype.element_ty), mask=is_v[:, None])
