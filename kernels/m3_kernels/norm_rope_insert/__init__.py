"""Norm and rotate the heads of new tokens; cache their keys, values and index keys; return the queries."""

from m3_kernels.norm_rope_insert import reference
from m3_kernels.registry import Op, register

norm_rope_insert = register(
    Op(
        name="norm_rope_insert",
        reference=reference.norm_rope_insert,
        kernel="m3_kernels.norm_rope_insert.kernel:norm_rope_insert",
    )
)
