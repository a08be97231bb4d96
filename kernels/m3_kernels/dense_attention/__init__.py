"""Causal attention over a paged cache, for prefill and decode in one batch."""

from m3_kernels.dense_attention import reference
from m3_kernels.registry import Op, register

dense_attention = register(
    Op(
        name="dense_attention",
        reference=reference.dense_attention,
        kernel="m3_kernels.dense_attention.kernel:dense_attention",
    )
)
