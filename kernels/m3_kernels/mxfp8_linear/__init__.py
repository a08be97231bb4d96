"""Multiply rows by a matrix that stays in MXFP8."""

from m3_kernels.mxfp8_linear import reference
from m3_kernels.registry import Op, register

mxfp8_linear = register(
    Op(name="mxfp8_linear", reference=reference.mxfp8_linear, kernel="m3_kernels.mxfp8_linear.kernel:mxfp8_linear")
)
