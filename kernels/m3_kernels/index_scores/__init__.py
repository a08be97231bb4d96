"""Score every visible block of keys for every query: the raw maximum over the block."""

from m3_kernels.index_scores import reference
from m3_kernels.registry import Op, register

index_scores = register(
    Op(name="index_scores", reference=reference.index_scores, kernel="m3_kernels.index_scores.kernel:index_scores")
)
