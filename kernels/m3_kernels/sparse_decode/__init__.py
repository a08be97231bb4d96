"""Attend one or a few new tokens a sequence, each to its own chosen blocks."""

from m3_kernels.registry import Op, register
from m3_kernels.sparse_decode import reference

sparse_decode = register(
    Op(name="sparse_decode", reference=reference.sparse_decode, kernel="m3_kernels.sparse_decode.kernel:sparse_decode")
)
