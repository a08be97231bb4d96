"""Choose the blocks each query attends to: exact, the own block always in."""

from m3_kernels.block_topk import reference
from m3_kernels.registry import Op, register

block_topk = register(
    Op(name="block_topk", reference=reference.block_topk, kernel="m3_kernels.block_topk.kernel:block_topk")
)
