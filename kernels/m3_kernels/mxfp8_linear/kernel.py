"""A product with an MXFP8 matrix in Triton. Legend: as in the reference; N outputs by M tokens are a tile.

As in `moe_experts`, from which the tiles come: the matrix is the left operand, and its numbers go from registers into
the product.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from m3_kernels.launch import check_same_device, on_device_of
from m3_kernels.moe_experts.dequantise import by_piece
from m3_kernels.moe_experts.kernel import add_products
from m3_kernels.mxfp8_linear.reference import check_matrix


def tile_sizes(tokens: int) -> dict[str, Any]:
    """How the product is cut, in steps of STEP inputs. Few tokens wait for the matrix: its tiles are many and small."""
    if tokens <= 16:
        return {"M": 16, "N": 16, "STEP": 256, "num_warps": 2, "num_stages": 3}
    if tokens <= 64:
        return {"M": 32, "N": 64, "STEP": 128, "num_warps": 4, "num_stages": 3}
    return {"M": 128, "N": 128, "STEP": 128, "num_warps": 8, "num_stages": 3}


def mxfp8_linear(x_TC: Tensor, weight_XC: Tensor, scale_XG: Tensor) -> Tensor:
    """As the reference. Errors: ValueError also for devices and strides that the tiles cannot take."""
    check_same_device(x=x_TC, weight=weight_XC, scale=scale_XG)
    check_matrix(x_TC, weight_XC, scale_XG)
    if not (weight_XC.is_contiguous() and scale_XG.is_contiguous()):
        raise ValueError("an MXFP8 matrix and its scales must be contiguous")
    (T, C), X = x_TC.shape, len(weight_XC)
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
