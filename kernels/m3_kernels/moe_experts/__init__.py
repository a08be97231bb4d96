"""Run each token through its chosen experts and sum them by their weights."""

from m3_kernels.moe_experts import reference
from m3_kernels.registry import Op, register

moe_experts = register(
    Op(name="moe_experts", reference=reference.moe_experts, kernel="m3_kernels.moe_experts.kernel:moe_experts")
)
