"""A product with an MXFP8 matrix in Triton. Legend: as in the reference; N outputs by M tokens are a tile.

With few tokens the tiles are those of `moe_experts`: the matrix is the left operand, and its numbers go from registers
into the product. With many it is multiplied out once, which costs less than doing so for every tile of tokens.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from m3_kernels.launch import check_same_device, on_device_of
from m3_kernels.moe_experts.dequantise import E4M3_POWER, by_piece
from m3_kernels.moe_experts.kernel import add_products
from m3_kernels.mxfp8_linear.reference import check_matrix

FEW_TOKENS = 64
"""With more of them the matrix is multiplied out first."""


def tile_sizes(tokens: int) -> dict[str, Any]:
    """How the product with few tokens is cut, in steps of STEP inputs."""
    if tokens <= 16:
        return {"M": 16, "N": 32, "STEP": 256, "num_warps": 4, "num_stages": 3}
    return {"M": 32, "N": 64, "STEP": 128, "num_warps": 4, "num_stages": 3}


def mxfp8_linear(x_TC: Tensor, weight_XC: Tensor, scale_XG: Tensor) -> Tensor:
    """As the reference. Errors: ValueError also for devices and strides that the tiles cannot take."""
    check_same_device(x=x_TC, weight=weight_XC, scale=scale_XG)
    check_matrix(x_TC, weight_XC, scale_XG)
    if not (weight_XC.is_contiguous() and scale_XG.is_contiguous()):
        raise ValueError("an MXFP8 matrix and its scales must be contiguous")
    (T, C), X = x_TC.shape, len(weight_XC)
    if T > FEW_TOKENS:
        matrix_XC = torch.empty(X, C, dtype=x_TC.dtype, device=x_TC.device)
        with on_device_of(x_TC):
            _multiply_out[(triton.cdiv(X * C, 4096),)](
                weight_XC.view(torch.uint8), scale_XG, matrix_XC, X * C, BLOCK=4096
            )
        return F.linear(x_TC, matrix_XC)
    out_TX = torch.empty(T, X, dtype=x_TC.dtype, device=x_TC.device)
    if T == 0:
        return out_TX
    tile = tile_sizes(T)
    packed = x_TC.dtype == torch.bfloat16 and x_TC.is_cuda
    with on_device_of(x_TC):
        _linear[(triton.cdiv(T, tile["M"]) * triton.cdiv(X, tile["N"]),)](
            by_piece(x_TC, 2), weight_XC.view(torch.int16), scale_XG, out_TX, T, X, C=C, PACKED=packed, **tile
        )
    return out_TX


@triton.jit
def _multiply_out(w, scale, out, count, BLOCK: tl.constexpr):
    """Exact: exponent and mantissa in float32's places are a small power of two times the number."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    bits = tl.load(w + at, mask=inside, other=0).to(tl.int32)
    value = ((bits & 127) << 20 | (bits & 128) << 24).to(tl.float32, bitcast=True)
    power = tl.load(scale + at // 32, mask=inside, other=0).to(tl.int32) + E4M3_POWER
    tl.store(out + at, (value * (power << 23).to(tl.float32, bitcast=True)).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _linear(
    x, w, scale, out, T, X, C: tl.constexpr, PACKED: tl.constexpr, M: tl.constexpr, N: tl.constexpr, STEP: tl.constexpr
):  # fmt: skip
    """One tile a program; those of the same outputs follow each other, while their weights are in L2."""
    row_tiles = tl.cdiv(T, M)
    m = tl.program_id(0) % row_tiles * M + tl.arange(0, M)
    n = tl.program_id(0) // row_tiles * N + tl.arange(0, N)
    x_row = x + m.to(tl.int64)[:, None] * C
    acc_NM = tl.zeros([N, M], tl.float32)
    for at in range(0, C, STEP):
        acc_NM = add_products(
            acc_NM, w, scale, n.to(tl.int64), n < X, x_row, m < T, at, C, 8, PACKED, STEP, x.dtype.element_ty
        )  # fmt: skip
    at = m.to(tl.int64)[:, None] * X + n[None, :]
    tl.store(out + at, tl.trans(acc_NM).to(out.dtype.element_ty), mask=(m < T)[:, None] & (n < X)[None, :])
