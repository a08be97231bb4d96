"""The gated activation in one Triton pass. Legend: as in the reference; W half of X."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from m3_kernels.launch import on_device_of

WIDTH = 1024
"""Elements of a program."""


def swiglu(gate_up_TX: Tensor, *, alpha: float, limit: float) -> Tensor:
    """As the reference. Errors: ValueError for a tensor that is not contiguous or has no two halves."""
    *rows, X = gate_up_TX.shape
    if X % 2 or not gate_up_TX.is_contiguous():
        raise ValueError(f"gate and up must be two halves of a contiguous tensor, got {tuple(gate_up_TX.shape)}")
    out_TW = torch.empty(*rows, X // 2, dtype=gate_up_TX.dtype, device=gate_up_TX.device)
    num_rows = out_TW.numel() // (X // 2) if X else 0
    if num_rows:
        with on_device_of(gate_up_TX):
            _swiglu[(num_rows, triton.cdiv(X // 2, WIDTH))](
                gate_up_TX, out_TW, X // 2, alpha, limit, WIDTH=WIDTH, num_warps=4
            )
    return out_TW


@triton.jit
def _swiglu(gate_up, out, W, alpha, limit, WIDTH: tl.constexpr):
    t = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = i < W
    gate = tl.minimum(tl.load(gate_up + t * 2 * W + i, mask=inside, other=0.0).to(tl.float32), limit)
    up = tl.load(gate_up + (t * 2 + 1) * W + i, mask=inside, other=0.0).to(tl.float32)
    up = tl.minimum(tl.maximum(up, -limit), limit)
    value = gate / (1 + tl.exp(-alpha * gate)) * (up + 1)
    tl.store(out + t * W + i, value.to(out.dtype.element_ty), mask=inside)
