"""Attend many new tokens a sequence, each to its own chosen blocks."""

from m3_kernels.registry import Op, register
from m3_kernels.sparse_prefill import reference

sparse_prefill = register(
    Op(
        name="sparse_prefill",
        reference=reference.sparse_prefill,
        kernel="m3_kernels.sparse_prefill.kernel:sparse_prefill",
    )
)
