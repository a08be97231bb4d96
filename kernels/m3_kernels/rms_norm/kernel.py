"""Residual addition and Gemma's RMSNorm in one Triton pass. Legend: as in the reference."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from m3_kernels.launch import check_same_device, on_device_of


def rms_norm(x_TC: Tensor, residual_TC: Tensor | None, weight_C: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """As the reference. Errors: ValueError for tensors that are not contiguous or do not fit together."""
    residual = x_TC if residual_TC is None else residual_TC
    check_same_device(x=x_TC, residual=residual, weight=weight_C)
    T, C = x_TC.shape
    if residual.shape != x_TC.shape or residual.dtype != x_TC.dtype or weight_C.shape != (C,):
        raise ValueError(
            f"x {tuple(x_TC.shape)}, residual {tuple(residual.shape)} and weight {tuple(weight_C.shape)} do not fit "
            f"together, or x is {x_TC.dtype} and the residual {residual.dtype}"
        )
    if not all(t.is_contiguous() for t in (x_TC, residual, weight_C)):
        raise ValueError("x, residual and weight must be contiguous")
    normed_TC = torch.empty_like(x_TC)
    total_TC = x_TC if residual_TC is None else torch.empty_like(x_TC)
    width = triton.next_power_of_2(C)
    with on_device_of(x_TC):
        _rms_norm[(T,)](
            x_TC,
            residual,
            weight_C,
            normed_TC,
            total_TC,
            C,
            eps,
            ADD=residual_TC is not None,
            WIDTH=width,
            num_warps=8 if width >= 4096 else 4,
        )
    return normed_TC, total_TC


@triton.jit
def _rms_norm(x, residual, weight, normed, total, C, eps, ADD: tl.constexpr, WIDTH: tl.constexpr):
    """One program a token."""
    row = tl.program_id(0).to(tl.int64) * C
    c = tl.arange(0, WIDTH)
    inside = c < C
    value = tl.load(x + row + c, mask=inside, other=0.0)
    if ADD:
        other = tl.load(residual + row + c, mask=inside, other=0.0)
        value = (value.to(tl.float32) + other.to(tl.float32)).to(value.dtype)
        tl.store(total + row + c, value, mask=inside)
    wide = value.to(tl.float32)
    inverse = 1 / tl.sqrt(tl.sum(wide * wide, 0) / C + eps)
    scale = 1 + tl.load(weight + c, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + row + c, (wide * inverse * scale).to(normed.dtype.element_ty), mask=inside)
