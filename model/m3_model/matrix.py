"""A weight matrix in the form that its machine multiplies by fastest, prepared once when a model is loaded."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from m3_kernels.mxfp8_linear import mxfp8_linear

EXACT = 2.0**-20
"""Largest error of a float16 form, as a share of the matrix's largest number: less than float32 sums lose."""


@dataclass(frozen=True)
class Matrix:
    """Calling it multiplies rows by the transposed matrix: [T, C] to [T, X], in the dtype of the rows."""

    weight_XC: Tensor

    def __call__(self, x_TC: Tensor) -> Tensor:
        return F.linear(x_TC, self.weight_XC)


@dataclass(frozen=True)
class HalfMatrix:
    """A float32 matrix whose numbers float16 holds, kept as float16 by FBGEMM, which comes with torch on x86.

    A product with few rows waits for the weights, and these are half as many bytes. Rows, products and sums are
    float32, and a row's result does not depend on how many rows come with it.
    """

    packed: Any

    def __call__(self, x_TC: Tensor) -> Tensor:
        product: Tensor = torch.ops.quantized.linear_dynamic_fp16(x_TC, self.packed)
        return product


@dataclass(frozen=True)
class QuantizedMatrix:
    """A matrix that stays in MXFP8 (m3_model.quantization); what it stands for is computed anew for each product."""

    weight_XC: Tensor
    scale_XG: Tensor

    def __call__(self, x_TC: Tensor) -> Tensor:
        return mxfp8_linear(x_TC, self.weight_XC, self.scale_XG)


AnyMatrix = Matrix | HalfMatrix | QuantizedMatrix


def prepare(weight_XC: Tensor) -> Matrix | HalfMatrix:
    """The form for the matrix's device and numbers. MXFP8 and most bfloat16 weights fit into float16."""
    if weight_XC.device.type != "cpu" or weight_XC.dtype != torch.float32 or not _has_fbgemm():
        return Matrix(weight_XC)
    error = (weight_XC - weight_XC.half().float()).abs().max()
    if not error <= EXACT * weight_XC.abs().max():  # NaN and what overflows to infinity is no less either
        return Matrix(weight_XC)
    return HalfMatrix(torch.ops.quantized.linear_prepack_fp16(weight_XC, None))


def _has_fbgemm() -> bool:
    return torch.backends.quantized.engine in ("fbgemm", "x86")
