"""MXFP8: groups of 32 numbers in 8-bit floats (e4m3) that share a power of two.

A matrix W [out, in] is stored as `weight` float8_e4m3fn [out, in] and `weight_scale_inv` uint8 [out, in / 32]; despite
its name the scale is multiplied: W[o, i] = weight[o, i] * 2 ** (scale[o, i // 32] - 127).
"""

import torch
from torch import Tensor

GROUP = 32
"""Neighbouring inputs that share a scale."""
BIAS = 127
"""Exponent that a stored scale of 0 lies below 2 ** 0 by."""
NAN_SCALE = 255
"""The stored scale that stands for no number."""
LARGEST = 448.0
"""Largest e4m3 number."""
LARGEST_SCALE = 128
"""The largest stored scale that kernels multiply by: 2 ** 1 (m3_kernels.moe_experts)."""


def dequantize(weight_OI: Tensor, scale_OX: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The matrix that an MXFP8 pair stands for; exact in float32 and, but for the smallest scales, in bfloat16.

    Errors: ValueError if the scale's shape does not belong to the weight's.
    """
    rows, columns = weight_OI.shape
    if tuple(scale_OX.shape) != (rows, columns // GROUP) or columns % GROUP:
        raise ValueError(
            f"a weight {tuple(weight_OI.shape)} needs scales {(rows, columns / GROUP)}, got {tuple(scale_OX.shape)}"
        )
    factors = torch.exp2(scale_OX.to(torch.float64) - BIAS).to(torch.float32)
    grouped = weight_OI.to(torch.float32).view(rows, columns // GROUP, GROUP)
    return (grouped * factors[..., None]).view(rows, columns).to(dtype)


def quantize(matrix_OI: Tensor) -> tuple[Tensor, Tensor]:
    """The MXFP8 pair (weight, scale) nearest to a matrix under the smallest scale that clips nothing.

    Errors: ValueError if the inputs are not a multiple of 32, or a number is not finite.
    """
    rows, columns = matrix_OI.shape
    if columns % GROUP:
        raise ValueError(f"MXFP8 needs inputs in groups of {GROUP}, got {columns}")
    grouped = matrix_OI.to(torch.float32).view(rows, columns // GROUP, GROUP)
    if not bool(torch.isfinite(grouped).all()):
        raise ValueError("cannot quantise a matrix with numbers that are not finite")
    largest = grouped.abs().amax(-1).clamp(min=torch.finfo(torch.float32).tiny)
    # frexp is exact where log2 rounds: largest / 448 = mantissa * 2 ** exponent with the mantissa in [0.5, 1).
    mantissa, exponent = torch.frexp(largest.to(torch.float64) / LARGEST)
    ceiling = torch.where(mantissa == 0.5, exponent - 1, exponent)
    scale = (ceiling + BIAS).clamp(0, 254)
    factors = torch.exp2(BIAS - scale.to(torch.float64))
    scaled = (grouped.to(torch.float64) * factors[..., None]).to(torch.float32)
    return scaled.to(torch.float8_e4m3fn).view(rows, columns), scale.to(torch.uint8)


_E2M1_BORDERS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
"""Between neighbouring magnitudes of e2m1: 0, 0.5, 1, 1.5, 2, 3, 4, 6."""
_E2M1_LARGEST = 6.0


def quantize_4bit(matrix_OI: Tensor) -> tuple[Tensor, Tensor]:
    """The MXFP4 pair nearest to a matrix under the smallest scale that clips nothing.

    Returns: (numbers uint8 [O, I / 2], scales uint8 [O, I / 32]). The earlier of two inputs is the low half of a byte:
    a sign, two bits of exponent, one of mantissa.
    Errors: ValueError if the inputs are not a multiple of 32, or a number is not finite or beyond 12.
    """
    rows, columns = matrix_OI.shape
    if columns % GROUP:
        raise ValueError(f"MXFP4 needs inputs in groups of {GROUP}, got {columns}")
    grouped = matrix_OI.to(torch.float32).view(rows, columns // GROUP, GROUP)
    largest = grouped.abs().amax(-1)
    if not bool((largest <= 2 * _E2M1_LARGEST).all()):
        raise ValueError(f"MXFP4 holds finite numbers up to {2 * _E2M1_LARGEST}, got {float(largest.max())}")
    mantissa, exponent = torch.frexp(largest.clamp(min=torch.finfo(torch.float32).tiny).double() / _E2M1_LARGEST)
    scale = (torch.where(mantissa == 0.5, exponent - 1, exponent) + BIAS).clamp(0, LARGEST_SCALE)
    scaled = grouped * torch.exp2(BIAS - scale.double()).float()[..., None]
    borders = torch.tensor(_E2M1_BORDERS, device=scaled.device)
    codes = torch.bucketize(scaled.abs(), borders).to(torch.uint8) | (torch.signbit(scaled).to(torch.uint8) << 3)
    pairs = codes.view(rows, columns // 2, 2)
    return pairs[..., 0] | (pairs[..., 1] << 4), scale.to(torch.uint8)
