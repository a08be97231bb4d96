"""A product with an MXFP8 matrix in plain torch. Legend: T tokens, C inputs, X outputs, G groups of 32 inputs."""

import torch
from torch import Tensor
from torch.nn import functional as F

from m3_kernels.moe_experts.reference import dequantised


def mxfp8_linear(x_TC: Tensor, weight_XC: Tensor, scale_XG: Tensor) -> Tensor:
    """Multiply rows by the transposed matrix.

    Shapes: weight_XC float8_e4m3fn, scale_XG uint8, a power of two for every 32 neighbouring inputs, of 128 (for
    2 ** 1) at most, on which kernels rely.
    Returns: [T, X] in x's dtype, summed in float32.
    """
    check_matrix(x_TC, weight_XC, scale_XG)
    return F.linear(x_TC.float(), dequantised(weight_XC, scale_XG)).to(x_TC.dtype)


def check_matrix(x_TC: Tensor, weight_XC: Tensor, scale_XG: Tensor) -> None:
    """Errors: ValueError if the three do not belong together."""
    X, C = weight_XC.shape
    if x_TC.shape[1] != C or C % 32 or tuple(scale_XG.shape) != (X, C // 32):
        raise ValueError(
            f"tokens of {x_TC.shape[1]} channels, a matrix {(X, C)} and scales {tuple(scale_XG.shape)} do not fit"
        )
    if weight_XC.dtype != torch.float8_e4m3fn or scale_XG.dtype != torch.uint8:
        raise ValueError(f"an MXFP8 matrix is float8_e4m3fn with uint8, got {weight_XC.dtype} with {scale_XG.dtype}")
